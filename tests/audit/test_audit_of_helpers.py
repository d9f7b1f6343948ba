"""What `make audit` shows, in small.

Real helpers over gRPC keep their claims, and broken builds of them do not pass.
"""

import pytest

from maskedlark.privacy.mechanism import Mechanism
from tests.audit.canary import Case, audit
from tests.audit.single_share import ADVANTAGE_AT_MOST, CHI_SQUARE_AT_MOST, examine


def test_one_helpers_share_is_uniform_also_where_there_is_nothing_to_hide_behind() -> None:
    found = examine(seed=11)
    assert max(found.chi_squares.values()) <= CHI_SQUARE_AT_MOST
    assert found.advantage <= ADVANTAGE_AT_MOST
    assert found.is_uniform


def test_helpers_that_leave_the_blind_out_are_caught_in_every_batch() -> None:
    found = examine(seed=11, is_blinded=False)
    assert min(found.chi_squares.values()) > CHI_SQUARE_AT_MOST
    assert found.advantage > 0.9
    assert not found.is_uniform


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mechanism", [Mechanism.LAPLACE, Mechanism.GAUSSIAN])
def test_helpers_stay_under_the_epsilon_that_they_state_and_half_the_noise_does_not(
    mechanism: Mechanism,
) -> None:
    epsilon = 2.0 if mechanism is Mechanism.LAPLACE else 8.0
    honest, halved = (
        audit(Case(mechanism=mechanism, epsilon=epsilon, is_halved=is_halved), rounds=300, error=0.01, seed=4)
        for is_halved in (False, True)
    )
    assert all(finding.shown <= finding.claimed for finding in honest)
    assert honest[1].claimed == pytest.approx(epsilon, rel=0.02)
    assert halved[1].shown > halved[1].claimed

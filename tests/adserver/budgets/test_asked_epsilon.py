"""An epsilon is granted whole, or refused with what is left: jobs that ask are in test_submission.py."""

import pytest

from adserver.budgets.asked_epsilon import check_epsilon, check_granted, round_down
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.privacy.accounting import Epsilons
from tests.builders import world

TASK = world(epsilon=4.0, collusion_epsilon=8.0).task


@pytest.mark.parametrize(
    ("number", "rounded"), [(2.2899, 2.28), (0.012399, 0.0123), (123.9, 123.0), (0.0, 0.0)]
)
def test_what_is_left_is_rounded_down_so_that_it_fits(number: float, rounded: float) -> None:
    assert round_down(number) == pytest.approx(rounded)
    assert round_down(number) <= number


def test_no_epsilon_is_offered_where_none_is_left() -> None:
    alone, together = Epsilons(ad_server=0.0, colluding=0.0), Epsilons(ad_server=4.0, colluding=6.0)
    with pytest.raises(JobRefused, match=r"next to .*, 4 in all leave this job 0: use another dataset"):
        check_granted(1.0, TASK, alone=alone, together=together)


def test_what_the_search_for_noise_leaves_open_is_granted() -> None:
    check_granted(
        1.0,
        TASK,
        alone=Epsilons(ad_server=0.97, colluding=1.4),
        together=Epsilons(ad_server=1.0, colluding=1.5),
    )


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan"), 4.01])
def test_an_epsilon_that_nothing_could_cost_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidTask, match="epsilon"):
        check_epsilon(epsilon, TASK)

"""One browser in a hundred lies about its weight or values: nothing that is trained or measured changes by a
bit.
"""

from collections import Counter
from pathlib import Path

import pytest

from maskedlark.errors import ReportReason
from tests.audit.poisoning import PEOPLE, POISONED, LyingAboutProofs, Outcome, run


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(tmp_path_factory.mktemp("clean"), poisoned=0)


def test_weights_and_cells_are_bit_equal_to_a_run_without_the_poisoned_reports(
    tmp_path: Path, clean: Outcome
) -> None:
    poisoned = run(tmp_path, poisoned=POISONED)
    assert POISONED / PEOPLE == 0.01
    assert poisoned.masters == clean.masters
    assert poisoned.cells == clean.cells
    assert poisoned.size == clean.size == PEOPLE
    assert poisoned.dropped == (Counter({ReportReason.NOT_PROVEN: POISONED}),) * 2
    assert clean.dropped == (Counter(), Counter())


def test_the_same_reports_change_the_weights_where_nothing_is_proven(tmp_path: Path) -> None:
    outcomes = [run(tmp_path / str(poisoned), poisoned=poisoned, proof=False) for poisoned in (0, POISONED)]
    assert outcomes[0].masters != outcomes[1].masters
    assert outcomes[1].size == PEOPLE + POISONED


def test_a_helper_that_sends_wrong_tags_only_loses_the_reports_that_it_lied_about(tmp_path: Path) -> None:
    lied = run(tmp_path, poisoned=0, between=LyingAboutProofs)
    assert lied.dropped == (Counter({ReportReason.NOT_PROVEN: PEOPLE // 2}),) * 2
    assert lied.size == PEOPLE // 2

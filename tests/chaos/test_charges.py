"""What the chaos run holds against a helper's ledger, and what not."""

import pytest

from tests.chaos.books import Charges


@pytest.mark.parametrize(
    ("charges", "wrong"),
    [
        (Charges(is_done=True, recorded=9, told=9, answered=(9, 9)), 0),
        (Charges(is_done=True, recorded=9, told=10, answered=(10, 9)), 1),
        (Charges(is_done=True, recorded=9, told=10, answered=(10, 10)), 2),
        (Charges(is_done=True, recorded=9, told=9, answered=(9, 8)), 1),
        (Charges(is_done=True, recorded=9, told=8, answered=(9, 9)), 1),
        (Charges(is_done=True, recorded=9, told=None, answered=(9, 9)), 0),
        (Charges(is_done=False, recorded=4, told=5, answered=(5, 4)), 0),
        (Charges(is_done=False, recorded=4, told=6, answered=(6, 4)), 1),
        (Charges(is_done=False, recorded=4, told=4, answered=(4, 3)), 1),
        (Charges(is_done=False, recorded=0, told=0, answered=(0, 0)), 0),
    ],
)
def test_a_round_is_charged_at_both_helpers_if_it_was_used_and_one_more_only_if_the_job_was_stopped(
    charges: Charges, wrong: int
) -> None:
    assert charges.wrong == wrong

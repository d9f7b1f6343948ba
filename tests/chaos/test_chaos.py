from pathlib import Path

import pytest

from tests.chaos.chaos import run
from tests.patience import HANGS_S


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(HANGS_S)
def test_killing_any_process_loses_nothing_and_charges_nothing_twice(tmp_path: Path) -> None:
    outcome = run(30.0, tmp_path, seed=7)
    assert outcome.is_right, str(outcome)  # as a string, else the numbers are cut out

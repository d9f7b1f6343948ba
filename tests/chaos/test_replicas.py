from pathlib import Path

import pytest

from tests.chaos.replicas import run
from tests.patience import HANGS_S


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(HANGS_S)
def test_killing_intakes_and_ad_servers_of_one_postgresql_loses_nothing(tmp_path: Path) -> None:
    outcome = run(6, tmp_path, seed=7)
    assert outcome.is_right, str(outcome)  # as a string, else the numbers are cut out

"""What an older version wrote is opened by today's, and a job that it left half done is finished.

tests/vectors/folders/README.md says where the folders come from.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.tutorial.fleet import HELPERS, Fleet

WRITTEN = Path(__file__).parents[1] / "vectors" / "folders" / "before-rooms.tar.gz"
TASK = "eda544ca857ff07b0b2464c6d07689ced283e5064ab55291a6dd3b9eea2784b2"
DATASET = "0b05737ede503a6e3d5313647149231ee698e8f83c2039596751d506bcc6b7dc"
ROUNDS = 4


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    subprocess.run([sys.executable, "-m", "tarfile", "-e", WRITTEN, tmp_path], check=True)
    parties = Fleet(folder=tmp_path, helper_options=("--min-batch-size-floor", "10"))
    try:
        for role in range(len(HELPERS)):
            parties.start_helper(role)
        yield parties
    finally:
        parties.stop()


def test_a_half_done_job_of_the_version_before_the_rooms_is_finished(fleet: Fleet) -> None:
    before = fleet.adserver_json("job", "show", options=False)
    assert (before["state"], before["rounds_done"]) == ("queued", 2)
    fleet.start_adserver()
    done = fleet.adserver_json("job", "watch", options=False)
    assert (done["state"], done["rounds_done"]) == ("done", ROUNDS)
    assert fleet.adserver_json("task", "show", options=False)["task_id"] == TASK
    (sealed,) = fleet.adserver_json("dataset", "list", options=False)
    assert (sealed["dataset_id"], sealed["state"], sealed["admitted"]) == (DATASET, "committed", 40)
    fleet.adserver("model", "export", str(fleet.folder / "trained.onnx"), options=False)
    assert (fleet.folder / "trained.onnx").stat().st_size > 0

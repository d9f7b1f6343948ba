"""A project is run by one process at a time, and by another as soon as that has ended, however it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adserver.quickstart.project import Project, new_project
from adserver.quickstart.project_run import run_project
from adserver.quickstart.run_lock import only_run, running_process
from maskedlark.errors import InvalidTask
from tests.adserver.quickstart.test_project import SETTINGS

HOLDER = """
import sys, time
from pathlib import Path
from adserver.quickstart.project import Project
from adserver.quickstart.run_lock import only_run
with only_run(Project.open(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path / "play", SETTINGS)


def test_a_second_run_is_refused_with_the_first_ones_number_and_process_and_starts_nothing(
    project: Project,
) -> None:
    done, _ = project.new_run(), project.new_run()
    (done / "summary.json").write_text(json.dumps({"run": "1"}))
    with only_run(project):
        with pytest.raises(InvalidTask, match=rf"^run 2 is running \(process {os.getpid()}\): wait for it"):
            run_project(project, lambda _: None)
        assert not project.parties.exists()
    with only_run(project):
        pass


def test_a_run_that_has_no_folder_yet_keeps_others_out_too(project: Project) -> None:
    (project.new_run() / "summary.json").touch()
    with only_run(project), pytest.raises(InvalidTask, match=r"^a run is running"), only_run(project):
        pass


def test_the_lock_ends_with_a_process_that_is_killed(project: Project) -> None:
    assert running_process(project) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(project.folder)], stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            assert running_process(project) == holder.pid
        finally:
            holder.send_signal(signal.SIGKILL)
    assert running_process(project) is None
    with only_run(project):
        assert running_process(project) == os.getpid()

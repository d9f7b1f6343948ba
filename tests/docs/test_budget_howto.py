"""docs/how-to/budget.md: every command runs, and its tables look as printed there."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import insert
from typer.testing import CliRunner

from adserver.cli.main import app as adserver_app
from adserver.records.dataset_state import DatasetState
from adserver.records.training_plan import TrainingPlan
from adserver.store.schema import datasets
from adserver.store.tasks import TaskStore
from adserver.training.model_file import without_notes
from helper.cli.main import app as helper_app
from maskedlark.terminal.budget_view import MORE_THAN_LEFT
from tests.adserver.job_world import ENCODED_MODEL, RECORDS, Site, eval_set_npz, sealed
from tests.builders import NOW
from tests.helper.parties import Scene

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "budget.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
]
SHOWN = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
OF = sealed(mechanism="gaussian", expires_at=1 << 39)


@dataclass
class Shell:
    """What the page's commands find, and what they printed."""

    site: Site
    printed: list[str] = field(default_factory=list)

    def run(self, line: str) -> str:
        program, *arguments = shlex.split(line)
        apps = {"adserver": adserver_app, "lark-helper": helper_app}
        if arguments == ["job", "show"]:  # the page has one dataset's latest job in mind
            arguments.append(self.site.store.all()[-1].job_id.hex())
        result = CliRunner(env={"COLUMNS": "140"}).invoke(apps[program], arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}: {result.output}"
        self.printed.append(result.stdout)
        while self.site.worker().run_one():
            pass
        return result.stdout


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A committed dataset at an ad server, another at a helper, and a model."""
    site = Site(tmp_path / "adserver", OF)
    TaskStore(site.engine).add(OF.of.bundle, created_at=NOW)
    row = {
        "handle": bytes(16),
        "task_id": OF.of.task.task_id,
        "state": DatasetState.COMMITTED,
        "created_at": NOW,
        "received": RECORDS,
        "size": RECORDS,
        "dataset_id": OF.datasets[0].dataset_id,
    }
    with site.engine.begin() as connection:
        connection.execute(insert(datasets).values(row))
    scene = Scene(tmp_path / "helpers", mechanism="gaussian")
    scene.start(scene.job(scene.seal(20), rounds=5, noise_multiplier=10.0))
    (tmp_path / "model.onnx").write_bytes(ENCODED_MODEL)
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    monkeypatch.setenv("ADSERVER_DATA", str(site.data_dir))
    monkeypatch.setenv("HELPER_DATA", str(scene.parties[0].data))
    monkeypatch.chdir(tmp_path)
    yield Shell(site)
    site.engine.dispose()


@pytest.mark.parametrize("page", ["how-to/budget.md", "how-to/dashboard.md", "tutorial/quickstart.md"])
def test_pages_say_as_every_face_does_why_more_than_is_left_may_be_asked_for(page: str) -> None:
    told = " ".join((DOCS / page).read_text().split())
    assert re.search(f"may be more than is .?left.?, {MORE_THAN_LEFT.partition(', ')[2]}", told)


@pytest.mark.page
@pytest.mark.slow
def test_every_command_of_the_page_runs_and_prints_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    assert len(COMMANDS) >= 10
    for line in COMMANDS:
        shell.run(line)
    assert (tmp_path / "budget.png").stat().st_size > 1_000
    printed = {heading(line) for text in shell.printed for line in text.splitlines()}
    headings = [
        heading(line)
        for block in SHOWN
        for line in block.splitlines()
        if re.match(r"(against the|job or query|   rounds|the job to submit)", line)
    ]
    assert len(headings) == 4
    assert set(headings) <= printed
    assert any("to the same from the given weights" in text for text in shell.printed)
    started = [
        job for job in shell.site.store.all() if shell.site.folder(job.job_id).model() != ENCODED_MODEL
    ]
    assert [shell.site.folder(job.job_id).model() for job in started] == [
        without_notes((tmp_path / "warm.onnx").read_bytes())
    ]
    shown = shell.run("adserver job show")
    assert "budget_spent" in shown
    plan = shell.site.store.all()[-1].plan
    assert isinstance(plan, TrainingPlan)
    assert plan.is_until_budget


def heading(line: str) -> str:
    return " ".join(line.split())

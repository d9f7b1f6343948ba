"""One run of a project whose people's devices train: no row leaves its device, and none is reported.

From the user's table to a trained model: encode, divide by people, task, job, devices, export, test.
"""

import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from adserver.quickstart.base_recipe import TableDescription
from adserver.quickstart.budget_check import FRAC_BITS_OF_UPDATES, strategy_settings
from adserver.quickstart.people import describe_left_out
from adserver.quickstart.recipe import FinishedJob, Recipe
from adserver.quickstart.runs import REPORTED, Rows
from adserver.training.defaults import Network
from maskedlark.errors import InvalidTask
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.plural import plural

# A round ends once all devices have answered; on a busy machine that takes minutes.
_WINDOW_S: Final = 600
_TELL_EVERY_S: Final = 10.0
# Devices that are asked for no further round for so long believe that the job has stopped.
_IDLE_S: Final = 120


class _Pace:
    """How far a job's rounds are, and how long the others will take by those that have ended."""

    def __init__(self, *, rounds: int, done: int, now_s: float) -> None:
        self._rounds = rounds
        self._first = self._done = done
        self._began_s = self._ended_s = now_s

    def describe(self, done: int, now_s: float) -> str:
        """Describe it at a time, given how many rounds are done."""
        if done > self._done:
            self._done, self._ended_s = done, now_s
        said = f"{done} of {plural(self._rounds, 'round')} done"
        if done == self._first:
            return f"{said}, {_roughly(now_s - self._began_s)} so far"
        each_s = (self._ended_s - self._began_s) / (done - self._first)
        left_s = max(0.0, each_s * (self._rounds - done) - (now_s - self._ended_s))
        return f"{said}, about {_roughly(each_s)} each: {_roughly(left_s)} left"


def _roughly(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class DeviceRecipe(Recipe):
    """Runs a project on people's devices, or goes on with a run that was interrupted; its servers are up."""

    def _train(self, described: TableDescription, _loss: Loss) -> FinishedJob:
        steps, division = self._steps, self._division
        panel = steps.do("panel", self._hold_out)
        # No step of its own: the file is deleted at the end, and a run that is gone on with needs it again.
        write_durably(self._held, self._written(division.reported))
        if self._is_compared:
            self._encode(self._held, self._steps.folder / REPORTED)
        untrained = self._model(described, rows=len(division.reported))
        # After the model, because helpers sign how many parameters an update has.
        task = steps.do("task", lambda: self._task(described.arguments, *self._updates(untrained)))
        job_id = steps.do("job", lambda: self._submit_rounds(task, untrained))
        self._tell_of_training(job_id)
        told = steps.do("devices", lambda: self._answer_rounds(task, job_id))
        job = self._watch(job_id)
        for file in (self._held, self._answers):
            file.unlink(missing_ok=True)
        left_out = Counter(division.left_out)
        left_out["devices and panel did not take the row"] += (
            len(division.reported) + len(division.panel) - told["examples"] - panel
        )
        return FinishedJob(
            task_id=task,
            job_id=job_id,
            job=job,
            untrained=untrained,
            rows=Rows(
                read=len(self._table), reported=told["examples"], panel=panel, left_out=dict(+left_out)
            ),
            reports=0,
            dataset_size=0,
            devices=told["devices"],
        )

    @property
    def _held(self) -> Path:
        """The rows that simulated devices hold, while they train."""
        return self._steps.folder / "devices.csv"

    @property
    def _answers(self) -> Path:
        """The devices' stored answers, while they train."""
        return self._steps.folder / "answers.sqlite3"

    def _hold_out(self) -> int:
        """Write the panel's features and labels; return its number of rows."""
        division, encoded = self._division, self._encode_panel(self._panel)
        self._tell(
            f"{plural(len(division.reported), 'row is', 'rows are')} on the devices of "
            f"{plural(division.people, 'person', 'people')}; "
            f"{plural(encoded, 'row of other people is', 'rows of other people are')} held out for testing"
        )
        for line in describe_left_out(division.left_out):
            self._tell(line)
        return encoded

    def _network(self, rows: int) -> Network:
        """Return a linear network over words' tables and numbers, with the hidden layers that are named."""
        return Network(hidden=self._settings.model.hidden or (), are_numbers_in_tables=False)

    def _updates(self, model: Path) -> tuple[str, ...]:
        """Return the options of `task create` for updates of this model, one from each person in a round."""
        return (
            *("--updates", str(self._parameters(model)), "--frac-bits", str(FRAC_BITS_OF_UPDATES)),
            *("--max-dataset-size", str(self._division.people)),
        )

    def _submit_rounds(self, task: str, model: Path) -> str:
        """Submit the job, unless an interrupted run has done so; return its id."""
        if (submitted := self._submitted(task)) is not None:
            return submitted
        training = self._settings.training
        settings = strategy_settings(self._settings.federated, devices=self._division.people)
        path = self._steps.folder / "strategy.json"
        write_durably(path, json.dumps(settings).encode())
        job = self._commands.read(
            *("adserver", "job", "submit", "--task", task, "--model", str(model)),
            *("--strategy", "dp-fedavg", "--settings", str(path), "--rounds", str(training.usual_rounds)),
            *("--epsilon", str(training.epsilon), "--window", str(_WINDOW_S), "--eval-set", str(self._panel)),
            *self._label,
        )
        return str(job["job_id"])

    def _answer_rounds(self, task: str, job_id: str) -> dict[str, Any]:
        """Let all devices answer the rounds that the job has left; return what became of their answers."""
        job, data = self._commands.read("adserver", "job", "show", job_id), self._settings
        left = job["rounds"] - job["rounds_done"]
        pace = _Pace(rounds=job["rounds"], done=job["rounds_done"], now_s=time.monotonic())

        def tell_rounds() -> None:
            with suppress(InvalidTask):  # a server that is too busy to say it now
                done = self._commands.read("adserver", "job", "show", job_id)["rounds_done"]
                self._tell(pace.describe(done, time.monotonic()))

        told: dict[str, Any] = self._commands.during(tell_rounds, every_s=_TELL_EVERY_S).read(
            *("browser-sim", "devices", "--site", f"http://{data.servers.adserver_http}", "--insecure"),
            *("--task", task, "--store", str(self._answers), "--trainer", "torch"),
            *("--holding", "csv", "--csv", str(self._held), "--user", data.federated.person),
            # With no round left, after an interruption, this only counts devices and rows again.
            *("--rounds", str(max(1, left)), "--idle", str(_IDLE_S if left else 0.1)),
        )
        before = f", after {plural(job['rounds_done'], 'round')} before it was interrupted" * (
            left < job["rounds"]
        )
        self._tell(
            f"{plural(told['devices'], 'device')} answered {plural(told['rounds'], 'round')}{before}: "
            "helpers got the two shares of a "
            "clipped update from each, and no row"
        )
        for reason, count in told["reasons"].items():
            self._tell(f"{plural(count, 'answer was', 'answers were')} not taken: {reason}")
        return told

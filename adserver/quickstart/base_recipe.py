"""What every run of a project does over reports, command by command: sign, report, seal, measure.

A run goes on where it was interrupted; `adserver.quickstart.runs` keeps what it has done.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from adserver.quickstart.check import read_table
from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.measurement import MeasurementPlan, plan_measurement
from adserver.quickstart.people import take_reported
from adserver.quickstart.project import Project
from adserver.quickstart.runs import NOTHING_ASKED, REPORTED, Rows, RunOptions, RunResult, Steps
from adserver.quickstart.settings import DataSettings
from adserver.records.job_record import Stop
from adserver.records.job_state import JobState
from adserver.views.printing import check_parts
from maskedlark.encoding.table import Table
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.plural import plural

ORIGIN: Final = "https://ads.example"
# Characters of the project's name in that of a run's task, which has 200
_MOST_NAME: Final = 180
# Runs of one table are compared on the same rows.
_PANEL_SEED: Final = 1
_Result = TypeVar("_Result", bound=RunResult)


@frozen
class TableDescription:
    """The table's features and labels, as its task declares them.

    Attributes:
        num_features: Bytes of a report.
        classes: The names of the classes, in the order of their codes.
        arguments: The options of `task create` that say so.
        encoder: The encoder's file, or None for the sample, whose features are numbers.
    """

    num_features: int
    classes: tuple[str, ...]
    arguments: tuple[str, ...]
    encoder: Path | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)


@frozen
class SealedReports:
    """What became of the table's rows, and what was measured of those that browsers reported.

    Attributes:
        task_id: The task's id.
        sent: What `browser-sim run` said.
        dataset: What `adserver dataset seal` said.
        measured: As of `Trained`; None where nothing is measured.
    """

    task_id: str
    sent: dict[str, Any]
    dataset: dict[str, Any]
    measured: dict[str, Any] | None

    @property
    def rows(self) -> Rows:
        """Every row that was read, once: reported, in the panel, or left out by reason."""
        return _rows(self.sent, self.dataset)


class BaseRecipe(ABC, Generic[_Result]):
    """Runs a project once, or goes on with a run that was interrupted; its servers are up."""

    def __init__(
        self,
        project: Project,
        tell: Callable[[str], None],
        watched: Callable[[], None] = lambda: None,
        options: RunOptions = NOTHING_ASKED,
        *,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """Take a project to run.

        Args:
            project: The project.
            tell: Gets one line a step.
            watched: Called while a command runs; raises if a server has ended.
            options: What the owner asks for this run; one that is gone on with keeps the rest.
            warnings: What the check warned of; the summary has it too.
        """
        self._options, self._warnings = options, warnings
        self._project = project
        self._tell = tell
        self._commands = ProjectCommands(project, watched)
        self._steps = Steps.open(project, options)

    @property
    def steps(self) -> Steps:
        """The steps that this run has done so far."""
        return self._steps

    def run(self) -> _Result:
        """Run all steps that are not done yet, in order.

        Raises:
            InvalidTask: a command refused; the message is what it said.
            HelperUnavailable: a server ended.
        """
        self._leave_job_that_is_over()
        try:
            result = self._run()
        except MaskedLarkError as error:
            # For `status`: the terminal that showed it may be closed.
            self._steps.stop(str(error))
            raise
        self._steps.finish(asdict(result))
        for warning in result.warnings:
            self._tell(f"warning: {warning}")
        return result

    def _leave_job_that_is_over(self) -> None:
        """Begin a new run in place of one whose job can never be done, and say which run goes on."""
        if (job := self._steps.done.get("job")) is not None:
            found = self._commands.read("adserver", "job", "show", str(job))
            stop = Stop(reason=found.get("reason") or "", cause="")
            if found.get("state") == JobState.CANCELLED or stop.is_lasting:
                self._steps.end_job()
                self._steps = Steps.open(self._project, self._options)
        if self._steps.done:
            self._tell(f"going on with run {self._steps.folder.name}, which was interrupted")

    @abstractmethod
    def _run(self) -> _Result:
        """Run all steps that are not done yet."""

    @property
    def _is_compared(self) -> bool:
        return self._steps.options.compare_plain

    def _collect(self, described: tuple[str, ...], panel: Path | None) -> SealedReports:
        """Let both helpers sign a task, browsers report the table, and measure the reports once sealed.

        Args:
            described: The options of `task create` for the features and labels of a report.
            panel: Where to write the rows that are not reported; None if all are.
        """
        steps = self._steps
        task = steps.do("task", lambda: self._task(described))
        # Sent again, each row would be reported twice: a run that was cut off here is not gone on with.
        sent = steps.do("reports", lambda: self._report(task, panel), is_begun_once=True)
        dataset = steps.do("dataset", lambda: self._seal(task))
        measured = (
            steps.do("measured", lambda: self._measure(task, dataset, panel)) if self._measured else None
        )
        return SealedReports(task_id=task, sent=sent, dataset=dataset, measured=measured)

    def _task(self, described: tuple[str, ...], *updates: str) -> str:
        task = self._project.settings.task
        made: str = self._commands.read(
            "adserver",
            "task",
            "create",
            "--wait",
            "--name",
            f"{self._project.folder.name[:_MOST_NAME]}, run {self._steps.folder.name}",
            "--origin",
            ORIGIN,
            *described,
            *self._declaration(),
            *updates,
            "--min-batch-size",
            str(task.min_batch_size),
            "--clip-norm",
            str(task.clip_norm),
            "--epsilon",
            str(task.epsilon),
            "--collusion-epsilon",
            str(task.collusion_epsilon),
        )["task_id"]
        self._tell(f"both helpers signed task {made[:12]}")
        return made

    def _report(self, task: str, panel: Path | None) -> Any:
        data, at = self._project.settings.data, self._project.settings.servers
        source = (
            (
                *("--source", "csv", "--csv", str(self._project.path(data.csv))),
                *_classes_of(data),
                *(self._measured.browser_options if self._measured else ()),
            )
            if data.csv
            else ("--source", "wbcd")
        )
        held_out = (
            *("--holdout", str(panel), "--holdout-fraction", str(data.panel)),
            *("--holdout-seed", str(_PANEL_SEED)),
        )
        told = self._commands.read(
            "browser-sim",
            "run",
            "--task",
            f"http://{at.adserver_http}/v1/tasks/{task}",
            "--to",
            at.adserver_grpc,
            *source,
            *(held_out if panel else ()),
            *(("--train-out", str(self._steps.folder / REPORTED)) if self._is_compared else ()),
            "--insecure",
        )
        held = f"; {plural(told['panel'], 'row is', 'rows are')} held out for testing" if panel else ""
        self._tell(
            f"browsers sealed and sent {plural(told['accepted'], 'report')} of "
            f"{plural(told['read'], 'row')}{held}"
        )
        for reason, count in told["left_out"].items():
            self._tell(f"{plural(count, 'row is', 'rows are')} left out: {reason}")
        return told

    def _seal(self, task: str) -> Any:
        """Seal the reports into a dataset, unless an interrupted run has done so."""
        # Each run has a task of its own, so a committed dataset of this task is this run's.
        known = [one for one in self._commands.read("adserver", "dataset", "list") if one["task_id"] == task]
        sealed = [one for one in known if one["state"] == "committed"]
        dataset = sealed[0] if sealed else self._commands.read("adserver", "dataset", "seal", "--task", task)
        self._tell(
            f"both helpers opened and agree on their shares of {plural(dataset['admitted'], 'report')}"
        )
        return dataset

    @cached_property
    def _table(self) -> Table:
        """The project's table, with the rows that are not reported."""
        return read_table(self._project.path(self._project.settings.data.csv))

    @cached_property
    def _measured(self) -> MeasurementPlan | None:
        """The columns to measure, with `[measure]`'s words for them."""
        settings = self._project.settings
        if not settings.measure.is_asked:
            return None
        return plan_measurement(self._table, settings.data, settings.measure)

    def _declaration(self) -> tuple[str, ...]:
        """Return the option of `task create` for the measurement's file, which is written here."""
        if self._measured is None:
            return ()
        path = self._steps.folder / "measurement.json"
        write_durably(path, self._measured.file)
        return ("--measurement", str(path))

    def _reported(self, panel: Path | None) -> Table:
        """Return the rows of the table that browsers reported: those that the panel's file does not have."""
        import numpy as np

        lines = np.load(panel, allow_pickle=False)["lines"].tolist() if panel else ()
        return take_reported(self._table, self._project.settings.data, frozenset(lines))

    def _measure(self, task: str, dataset: dict[str, Any], panel: Path | None) -> dict[str, Any]:
        """Measure the dataset, write table and picture, and return what the summary says of it."""
        from adserver.messages.query import ResultMessage
        from adserver.views.query import Statistic, means_in, write_result

        settings, plan = self._project.settings, self._measured
        if plan is None:
            raise AssertionError("only a project with [measure] is measured")
        # Before the query: what fails here has cost nothing
        own_table = self._write_own_table(plan, panel)
        files = {kind: self._steps.folder / f"measured.{kind}" for kind in ("csv", "json")}
        files |= {"png": picture} if (picture := self._picture("measured")) else {}
        said = self._commands.read(
            *("adserver", "aggregate", "--dataset", dataset["dataset_id"], *plan.query_options),
            *("--epsilon", str(settings.measure.epsilon)),
            # The same id if this run is gone on with: an answer is charged once.
            *("--query-id", sha256(f"measured {task}".encode()).hexdigest()[:32]),
        )
        # Derived from the sums, and no field of the message that is read back.
        said.pop("statistics")
        answer = ResultMessage.model_validate(said).value()
        result, quantiles = plan.in_units(answer), plan.read_quantiles(answer)
        statistics = (*means_in(result, plan.filled), *(Statistic.kept(*one) for one in quantiles.items()))
        for path in files.values():
            write_result(result, path, statistics)
        self._tell(
            f"measured the {dataset['admitted']} reported rows for epsilon {result.cost.ad_server:.3g}: "
            f"see {files['csv']}"
        )
        return {
            **{kind: str(path) for kind, path in files.items()},
            "own_table": str(own_table),
            "counted_by": plan.filled,
            "quantiles": [*quantiles],
            "epsilon": result.cost.ad_server,
            "collusion_epsilon": result.cost.colluding,
        }

    def _write_own_table(self, plan: MeasurementPlan, panel: Path | None) -> Path:
        """Write what the owner's table tells of the results; apart from them, since it is not private."""
        from adserver.quickstart.measurement_forecast import describe_own_table

        settings, path = self._project.settings, self._steps.folder / "own-table-not-private.json"
        told = describe_own_table(self._reported(panel), settings.data, settings.measure, settings.task, plan)
        write_durably(path, (json.dumps(told, indent=2) + "\n").encode())
        return path

    def _picture(self, name: str) -> Path | None:
        """Return the file of a picture, or the reason why it could not be drawn."""
        path = self._steps.folder / f"{name}.png"
        try:
            check_parts([path])
        except InvalidTask as error:
            self._tell(f"no picture: {error}")
            return None
        return path


def _rows(sent: dict[str, Any], dataset: dict[str, Any]) -> Rows:
    """Count the rows that were read: reported, in the panel, or left out by reason."""
    at_browsers = {name.replace("_", " "): sent[name] for name in ("no_consent", "over_cap", "too_late")}
    left_out = Counter({**sent["left_out"], **at_browsers})
    left_out += Counter({f"the ad server rejected: {reason}": n for reason, n in sent["rejected"].items()})
    unsealed = sent["accepted"] - dataset["admitted"]
    left_out["a helper dropped the report"] = unsealed
    return Rows(
        read=sent["read"],
        reported=dataset["admitted"],
        panel=sent["panel"],
        left_out={reason: count for reason, count in left_out.items() if count},
    )


def _classes_of(data: DataSettings) -> tuple[str, ...]:
    return tuple(part for value in data.classes for part in ("--class", value))

"""What every run of a project does over reports, command by command: sign, report, seal, measure.

A run goes on where it was interrupted; `adserver.quickstart.runs` keeps what it has done.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from adserver.quickstart.check import read_table
from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.measurement import MeasurementPlan, plan_measurement
from adserver.quickstart.people import (
    Division,
    describe_left_out,
    divide_by_settings,
    settle,
    take_reported,
    write_table,
)
from adserver.quickstart.project import Project
from adserver.quickstart.runs import NOTHING_ASKED, REPORTED, Rows, RunOptions, RunResult, Steps
from adserver.quickstart.settings import DataSettings, Settings, TaskSettings
from adserver.records.job_record import Stop
from adserver.records.job_state import STOPPED, JobState
from adserver.views.printing import check_parts
from maskedlark.encoding.encoder import read_encoder
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
        leaks: tuple[str, ...] = (),
    ) -> None:
        """Take a project to run.

        Args:
            project: The project.
            tell: Gets one line a step.
            watched: Called while a command runs; raises if a server has ended.
            options: What the owner asks for this run; one that is gone on with keeps the rest.
            warnings: What the check warned of, which is not told again; the summary has it too.
            leaks: Which columns tell the label by themselves, as the check found.
        """
        self._options, self._warnings, self._leaks = options, warnings, leaks
        self._project = project
        self._tell = tell
        self._commands = ProjectCommands(project, watched)
        self._steps = self._open_steps()

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
            # For `status`: the terminal that showed it may be closed. A disk that is full takes no note, and
            # must not hide the error.
            with suppress(OSError):
                self._steps.stop(str(error))
            raise
        self._steps.finish(asdict(result))
        self._tell_warnings(result)
        return result

    def _tell_warnings(self, result: _Result) -> None:
        """Tell each warning of the result but the verdict, with which the printed result begins."""
        verdict = (asdict(result).get("plain") or {}).get("verdict")
        for warning in result.warnings:
            if warning not in self._warnings and not (verdict and verdict in warning):
                self._tell(f"warning: {warning}")

    def _leave_job_that_is_over(self) -> None:
        """Begin a new run in place of one whose job can never be done, and say which run goes on."""
        if (job := self._steps.done.get("job")) is not None:
            found = self._commands.read("adserver", "job", "show", str(job))
            stop = Stop(reason=found.get("reason") or "", cause="")
            if found.get("state") == JobState.CANCELLED or stop.is_lasting:
                self._steps.end_job()
                self._steps = self._open_steps()
        if self._steps.done:
            self._tell(f"going on with run {self._steps.folder.name}, which was interrupted")

    def _open_steps(self) -> Steps:
        """Go on with the last run or begin one; if the last one is left, say so and stop its job."""
        last = self._project.last_run()
        found = None if last is None else Steps.read(last)
        why = "" if found is None else found.why_not_on(self._project)
        if found is None or not why:
            return Steps.open(self._project, self._options)
        # Before another run is the last one: if this is cut off, the next one does it
        stopped = [*self._leave(found, why)]
        begun = Steps.open(self._project, self._options)
        before, now = found.folder.name, begun.folder.name
        begins = "it is begun anew" if before == now else f"run {now} begins"
        self._tell(f"run {before} was not done and is not gone on with: {why}; {begins}")
        for job in stopped:
            self._tell(f"job {job[:12]} of run {before} is stopped")
        return begun

    def _leave(self, left: Steps, why: str) -> Iterator[str]:
        """Note why a run is left, and stop its job; yield the job's id if it was not over.

        It would be trained to its end, before the next run's, and nobody would take its model.
        """
        left.leave(why)
        if (task := left.done.get("task")) is None:
            return
        for job in self._commands.read("adserver", "job", "list"):
            if job["task_id"] != task or JobState(job["state"]) in STOPPED:
                continue
            # It may end in this moment: then there is nothing to stop
            with suppress(InvalidTask):
                self._commands.run("adserver", "job", "cancel", job["job_id"])
                yield job["job_id"]

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
        report = partial(self._report, task, panel)
        if self._settings.person:
            held = steps.do("panel", partial(self._encode_panel, panel)) if panel else 0
            report = partial(self._report_people, task, held)
        sent = steps.do("reports", report)
        dataset = steps.do("dataset", lambda: self._seal(task))
        measured = (
            steps.do("measured", lambda: self._measure(task, dataset, panel)) if self._measured else None
        )
        return SealedReports(task_id=task, sent=sent, dataset=dataset, measured=measured)

    def _task(self, described: tuple[str, ...], *updates: str) -> str:
        task = self._settings.task
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
            *_unit_of(task),
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
        data = self._settings.data
        held_out = (
            *("--holdout", str(panel), "--holdout-fraction", str(data.panel)),
            *("--holdout-seed", str(_PANEL_SEED)),
        )
        source = self._source_of(self._project.path(data.csv)) if data.csv else ("--source", "wbcd")
        told = self._send(task, *source, *(held_out if panel else ()))
        held = f"; {plural(told['panel'], 'row is', 'rows are')} held out for testing" if panel else ""
        self._tell_of_reports(told, held)
        return told

    def _report_people(self, task: str, panel: int) -> Any:
        """Let the browsers of the people who are not in the panel report their rows.

        Args:
            task: The task's id.
            panel: How many rows the panel's file has.
        """
        division = self._division
        # In clear, and only until it is sent
        path = self._steps.folder / "reported.csv"
        try:
            write_durably(path, self._written(division.reported))
            keys = {f"{name}={of}": f"{name}={as_key}" for name, of, as_key in self._keys_as_words()}
            source = (keys.get(one, one) for one in self._source_of(path))
            sent = self._send(task, *source, "--user", self._settings.person)
        finally:
            path.unlink(missing_ok=True)
        left_out = Counter(division.left_out) + Counter(sent["left_out"])
        left_out["the panel did not take the row"] += len(division.panel) - panel
        told = {**sent, "read": len(self._table), "panel": panel, "left_out": dict(+left_out)}
        held = f"; {plural(panel, 'row of other people is', 'rows of other people are')} held out for testing"
        by = f", by the browsers of {plural(division.people, 'person', 'people')}"
        self._tell_of_reports(told, by + held * bool(panel))
        return told

    def _source_of(self, table: Path) -> tuple[str, ...]:
        """Return the options of `browser-sim run` that say which rows are reported, and what of them."""
        return (
            *("--source", "csv", "--csv", str(table)),
            *_classes_of(self._settings.data),
            *(self._measured.browser_options if self._measured else ()),
        )

    def _send(self, task: str, *source: str) -> dict[str, Any]:
        at = self._settings.servers
        told: dict[str, Any] = self._commands.read(
            "browser-sim",
            "run",
            "--task",
            f"http://{at.adserver_http}/v1/tasks/{task}",
            "--to",
            at.adserver_grpc,
            *source,
            *(("--train-out", str(self._steps.folder / REPORTED)) if self._is_compared else ()),
            "--insecure",
        )
        return told

    def _tell_of_reports(self, told: dict[str, Any], more: str) -> None:
        self._tell(
            f"browsers sealed and sent {plural(told['accepted'], 'report')} of "
            f"{plural(told['read'], 'row')}{more}"
        )
        for line in describe_left_out(told["left_out"]):
            self._tell(line)

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
    def _settings(self) -> Settings:
        """The project's settings, settled."""
        settings = self._project.settings
        return settle(self._table, settings) if settings.task.person else settings

    @cached_property
    def _division(self) -> Division:
        """The rows of the people who report or train, and those of the panel's people."""
        return divide_by_settings(self._table, self._settings)

    def _encode_panel(self, panel: Path) -> int:
        """Write the features and labels of the panel's people; return the number of rows."""
        rows = self._steps.folder / "panel.csv"
        write_durably(rows, self._written(self._division.panel))
        try:
            return self._encode(rows, panel, "--user", self._settings.person)
        finally:
            # In clear, and no longer needed.
            rows.unlink()

    @property
    def _encoder(self) -> Path:
        return self._steps.folder / "encoder.json"

    def _written(self, side: Table) -> bytes:
        """Return the file of some rows, whose few amounts may not show by themselves how they are meant."""
        values = self._settings.measure.values
        words = {one.column for one in values if one.word}
        summed = {one.column: side.numbers(one.column) for one in values if one.column not in words}
        keys = {as_key: side.columns[of] for _, of, as_key in self._keys_as_words()}
        if self._settings.data.label:
            side = side.read_by(read_encoder(self._encoder.read_bytes()))
        return write_table(replace(side, columns={**side.columns, **summed, **keys}))

    def _keys_as_words(self) -> Iterator[tuple[str, str, str]]:
        """Yield the key, the column and the column of its words for each one that is written as numbers, too.

        A key groups by amounts as they are in the table, also where the model learns from their numbers.
        """
        if self._measured is None or not self._settings.data.label:
            return
        amounts = self._table.amounts_read_by(read_encoder(self._encoder.read_bytes()))
        for name, column in self._measured.keys.items():
            if column in amounts:
                as_key = f"{column} as a key"
                while as_key in self._table.columns:
                    as_key += "'"
                yield name, column, as_key

    def _encode(self, table: Path, out: Path, *options: str) -> int:
        """Write a table's features and labels; return its number of rows."""
        arguments = ("--csv", str(table), "--encoder", str(self._encoder), "-o", str(out))
        return int(self._commands.read("browser-sim", "encode", *arguments, *options)["rows"])

    @cached_property
    def _table(self) -> Table:
        """The project's table, with the rows that are not reported."""
        return read_table(self._project.path(self._project.settings.data.csv))

    @cached_property
    def _measured(self) -> MeasurementPlan | None:
        """The columns to measure, with `[measure]`'s words for them."""
        settings = self._settings
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
        if self._settings.person:
            return self._division.reported
        import numpy as np

        lines = np.load(panel, allow_pickle=False)["lines"].tolist() if panel else ()
        return take_reported(self._table, self._settings.data, frozenset(lines))

    def _measure(self, task: str, dataset: dict[str, Any], panel: Path | None) -> dict[str, Any]:
        """Measure the dataset, write table and picture, and return what the summary says of it."""
        from adserver.messages.query import ResultMessage
        from adserver.views.query import Statistic, means_in, write_result

        settings, plan = self._settings, self._measured
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
        result, quantiles = plan.without_histograms(answer), plan.read_quantiles(answer)
        statistics = (*means_in(result), *(Statistic.kept(*one) for one in quantiles.items()))
        for path in files.values():
            write_result(result, path, statistics)
        self._tell(
            f"measured the {dataset['admitted']} reported rows for epsilon {result.cost.ad_server:.3g}"
            f"{' of a person' if settings.person else ''}: see {files['csv']}"
        )
        return {
            **{kind: str(path) for kind, path in files.items()},
            "own_table": str(own_table),
            "quantiles": [*quantiles],
            "epsilon": result.cost.ad_server,
            "collusion_epsilon": result.cost.colluding,
        }

    def _write_own_table(self, plan: MeasurementPlan, panel: Path | None) -> Path:
        """Write what the owner's table tells of the results; apart from them, since it is not private."""
        from adserver.quickstart.measurement_forecast import describe_own_table

        settings, path = self._settings, self._steps.folder / "own-table-not-private.json"
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


def _unit_of(task: TaskSettings) -> tuple[str, ...]:
    """Return the options of `task create` for a budget of a person, where settled settings name one."""
    return ("--unit", "user", "--reports-per-user", str(task.rows_per_person)) if task.person else ()


def _classes_of(data: DataSettings) -> tuple[str, ...]:
    return tuple(part for value in data.classes for part in ("--class", value))

"""What a project's runs have done so far, and what became of them: the files of `runs/N`.

steps = Steps.open(project, RunOptions(name="wide"))     # the last run if it was interrupted, else a new one
task = steps.do("task", create_task)
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

from adserver.quickstart.project import Project
from adserver.quickstart.settings import Settings
from maskedlark.canonical import encode
from maskedlark.frozen import frozen
from maskedlark.runtime.durable_file import write_durably

SUMMARY: Final = "summary.json"
_PROGRESS: Final = "progress.json"
REPORTED: Final = "reported.npz"
"""The reported rows in clear, while a run is compared with plain training."""
LATER: Final = "a later run was begun"
"""Why a run is not gone on with that is not the last one."""


@frozen
class Rows:
    """What became of the rows of the table: they add up to those read.

    Attributes:
        read: Rows in the file.
        reported: Reports in the dataset; of devices, the rows on those that answered.
        panel: Rows that were never reported: the model is tested on them.
        left_out: By column and reason, or by the reason of the server that dropped a report.
    """

    read: int
    reported: int
    panel: int
    left_out: dict[str, int]


@frozen
class Trained:
    """What `runs/N/summary.json` holds. Loss, accuracy and AUC are on the rows that were never reported.

    The model has the weights of the latest round whose loss there, of two classes after calibration, is
    within 1 % of the least, a choice that flatters its figures a little; a job on devices keeps those of the
    last round only. Those of the last round, which nobody chose, are there beside them.

    Of two classes the model is calibrated on those rows: its logit is scaled and shifted so that the mean
    prediction is the share of class 1, which leaves the AUC as it is.

    Attributes:
        reports: Reports that the ad server took; none where devices train.
        dataset_size: Reports that are trained on; none where devices train.
        dataset_id: The dataset of these reports; None where devices train.
        devices: Devices that answered the rounds, one of each person; None where browsers report.
        chosen_round: After so many rounds the weights were the model's.
        last_loss: Of the weights after the last round, calibrated where the model is; so are `last_accuracy`
            and `last_auc`.
        plain: How the better of the network and a linear model does that was trained on the same rows without
            privacy, with loss, accuracy, auc, auc_interval, `kind` (network or linear) and what the panel
            chose: learning_rate, weight_decay and epochs, or penalty and are_numbers_in_bins; None unless it
            was asked for. `panel_alone` in it has the same figures of training on the panel alone, each of
            whose rows was scored by training on four fifths that it, and all of its person's, is not in; None
            for rows of fewer than five people. Each has `private_minus_this`: the metric (auc, or
            accuracy of more classes), the private model's less this one's, and `low` and `high` of its 95 %
            interval, paired on the same rows of the panel; None of numbers, and where a class has too few
            rows. It holds no noise of training: another run may differ by more. `verdict` says it in words.
        accuracy: None for a model that does not classify.
        auc: The chance that a row of class 1 has a higher score than one of class 0; None but for two
            classes.
        auc_interval: Its 99 % interval for rows like those of the panel; a difference of two runs within it
            is chance.
        base_rate: The share of class 1 of two classes; of more, the share of the most frequent.
        predicts: The name of class 1 of two classes, whose chance the model gives; empty for more.
        mean_over_rate: The mean prediction over the base rate, of two classes.
        calibration: The scale and shift of the logit, and loss, accuracy and mean_over_rate without them;
            None where the model could not be calibrated.
        model: The trained file, which takes the encoder's features.
        encoder: The encoder's file; empty for the sample.
        model_of_columns: The same model behind the encoder: it takes raw columns. Empty if there is none.
        warnings: What is wrong with the model, each with what to do about it.
        leaks: How columns tell the label by themselves, which makes the figures worthless unless these are
            known before the label; the warnings have it, too.
        epsilon: What training cost; so is `collusion_epsilon`.
        epsilon_with_measurement: What training and measurement cost the dataset together, as `adserver
            budget` says it; so is `collusion_epsilon_with_measurement`. None where nothing is measured.
        measured: What `[measure]` asked for: its files and its epsilons; None if nothing.
        name: What its owner calls the run.
        note: What its owner wants to remember of it.
        rows_per_person: The most rows that a person reported, where each epsilon is of all of them; None
            where it is of one row, or of a person's device.
    """

    run: str
    task_id: str
    job_id: str
    rows: Rows
    reports: int
    dataset_size: int
    dataset_id: str | None = None
    rounds: int
    chosen_round: int
    loss: float
    accuracy: float | None
    auc: float | None
    base_rate: float | None
    predicts: str
    mean_over_rate: float | None
    last_loss: float
    last_accuracy: float | None
    last_auc: float | None
    warnings: tuple[str, ...]
    epsilon: float
    collusion_epsilon: float
    epsilon_with_measurement: float | None = None
    collusion_epsilon_with_measurement: float | None = None
    model: str
    encoder: str
    model_of_columns: str
    curves: str
    leaks: tuple[str, ...] = ()
    devices: int | None = None
    auc_interval: tuple[float, float] | None = None
    calibration: dict[str, Any] | None = None
    measured: dict[str, Any] | None = None
    plain: dict[str, Any] | None = None
    name: str = ""
    note: str = ""
    rows_per_person: int | None = None


@frozen
class MeasuredRun:
    """What `runs/N/summary.json` holds of a run that trained no model: each as of `Trained`.

    Attributes:
        epsilon: What the measurement cost; so is `collusion_epsilon`.
    """

    run: str
    task_id: str
    rows: Rows
    reports: int
    dataset_size: int
    dataset_id: str
    warnings: tuple[str, ...]
    epsilon: float
    collusion_epsilon: float
    measured: dict[str, Any]
    name: str = ""
    note: str = ""
    rows_per_person: int | None = None


RunResult: TypeAlias = Trained | MeasuredRun
"""What a run has led to, as its summary has it."""


@frozen
class RunOptions:
    """What the owner asked for a run: see `Trained`.

    Attributes:
        name: What the owner calls it.
        note: What the owner wants to remember of it.
        compare_plain: Also train the network without privacy: on the same rows, and on the panel alone.
    """

    name: str = ""
    note: str = ""
    compare_plain: bool = False

    def after(self, begun: "RunOptions") -> "RunOptions":
        """Return these options, and what a run was begun with where they say nothing."""
        return RunOptions(
            name=self.name or begun.name,
            note=self.note or begun.note,
            compare_plain=self.compare_plain or begun.compare_plain,
        )


NOTHING_ASKED: Final = RunOptions()


class Steps:
    """What a run has done, in `runs/N/progress.json`: an interrupted run is gone on with.

    A run is gone on with only if `lark.toml` and the table are as they were, if its job can still be done,
    and if no step was cut off that cannot be repeated: sending reports. Else the next run replaces it, with
    its number, name and note, if helpers were never asked to sign its task and its folder holds only files
    that runs write; and comes after it if not.
    """

    _BEGUN: Final = "begun"
    _SETTINGS: Final = "settings"
    _STOPPED: Final = "stopped"
    _LEFT: Final = "left"
    _OPTIONS: Final = "options"
    # Sent again, each row would be reported twice
    _NOT_REPEATED: Final = "reports"
    _BEFORE_TASK: Final = frozenset({"table", "panel"})
    _FILES_BEFORE_TASK: Final = frozenset(
        {"encoder.json", "panel.csv", "panel.npz", "devices.csv", "untrained.onnx", REPORTED, _PROGRESS}
    )
    _JOB_IS_OVER: Final = "a job that cannot be done"

    def __init__(
        self,
        folder: Path,
        settings: str,
        done: dict[str, Any],
        *,
        options: RunOptions,
        stopped: str = "",
        left: str = "",
        begun: str | None = None,
    ) -> None:
        """Take what a file holds, or nothing of a new run.

        Args:
            folder: The run's.
            settings: The digest of what the run was begun with.
            done: What each step returned.
            options: What the owner asked for it.
            stopped: The error that ended the run last.
            left: Why a later run did not go on with it.
            begun: The step that was begun last, if it was not done.
        """
        self.folder = folder
        self.done = done
        self.options = options
        self.stopped = stopped
        self.left = left
        self._settings = settings
        self._begun = begun

    @classmethod
    def open(cls, project: Project, options: RunOptions = NOTHING_ASKED) -> "Steps":
        """Find the last run if it can be gone on with; else begin a new one.

        A run keeps the options that it was begun with, where these say nothing else.
        """
        last = project.last_run()
        found = None if last is None else cls.read(last)
        if found is not None and found._is_latest(project):
            # Also of one that was cut off where nobody knows how much happened: what was asked for is known.
            options = options.after(found.options)
            if found.can_go_on(project):
                found.options = options
                found._write(begun=found._begun)
                return found
        if found is not None and found.is_replaced:
            # The comparison is not kept: other settings may train no model
            options = options.after(replace(found.options, compare_plain=False))
            # A folder that cannot be removed keeps its number
            with suppress(OSError):
                shutil.rmtree(found.folder)
        begun = cls(project.new_run(), _digest(project), {}, options=options)
        # Before the first step: what was asked for is known if that is never begun
        begun._write(begun=None)
        return begun

    @classmethod
    def read(cls, folder: Path) -> "Steps | None":
        """Return what a run has done; None of one that is finished or has done nothing yet."""
        if (folder / SUMMARY).exists():
            return None
        # Whatever a file holds that another program wrote or cut off: then a new run begins.
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = dict(json.loads((folder / _PROGRESS).read_text()))
            begun = found.pop(cls._BEGUN, None)
            stopped, left = found.pop(cls._STOPPED, ""), found.pop(cls._LEFT, "")
            options = RunOptions(**found.pop(cls._OPTIONS))
            settings = found.pop(cls._SETTINGS)
            return cls(folder, settings, found, options=options, stopped=stopped, left=left, begun=begun)
        return None

    def can_go_on(self, project: Project) -> bool:
        """Return whether the project's next run goes on with this one."""
        return not self.why_not_on(project)

    def why_not_on(self, project: Project) -> str:
        """Return why the project's next run does not go on with this one; empty if it does."""
        if self.folder != project.last_run():
            return LATER
        if not self._is_latest(project):
            return "lark.toml or the table has changed"
        if self._begun == self._JOB_IS_OVER:
            return "its job cannot be done"
        # Begun and not done: it was cut off, and nobody knows how much of it happened.
        if self._begun == self._NOT_REPEATED:
            return f"it was cut off while {self._begun} were being sent, and how many arrived is not known"
        return ""

    @property
    def is_replaced(self) -> bool:
        """Return whether the next run, if it does not go on with this one, takes its number.

        True if helpers were never asked to sign a task of this run, so that no server knows its number, and
        if its folder is no symbolic link and holds only files that a run writes before that.
        """
        if not {*self.done, *filter(None, [self._begun])} <= self._BEFORE_TASK or self.folder.is_symlink():
            return False
        return all(
            one.name in self._FILES_BEFORE_TASK and one.is_file() and not one.is_symlink()
            for one in self.folder.iterdir()
        )

    def _is_latest(self, project: Project) -> bool:
        """Return whether this is the project's last run, with the settings that it has now."""
        return self.folder == project.last_run() and self._settings == _digest(project)

    def do(self, name: str, step: Callable[[], Any]) -> Any:
        """Run a step unless it is done, and remember what it returned."""
        if name not in self.done:
            # Written before the step: a crash in it leaves the mark, and servers may have done their part.
            self._write(begun=name)
            self.done[name] = step()
            self._write(begun=None)
        return self.done[name]

    def stop(self, why: str) -> None:
        """Remember the error that ended the run."""
        self._write(begun=self._begun, stopped=why)

    def leave(self, why: str) -> None:
        """Remember why the run is not gone on with."""
        self._write(begun=self._begun, stopped=self.stopped, left=why)

    def end_job(self) -> None:
        """Remember that the run's job can never be done: the next run is a new one."""
        self._write(begun=self._JOB_IS_OVER)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the run's summary; it is not gone on with any more."""
        # The summary first: a run without one counts as interrupted and would be gone on with.
        write_durably(self.folder / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        (self.folder / _PROGRESS).unlink(missing_ok=True)

    def _write(self, *, begun: str | None, stopped: str = "", left: str = "") -> None:
        self._begun, self.stopped, self.left = begun, stopped, left
        known = {
            self._SETTINGS: self._settings,
            self._OPTIONS: asdict(self.options),
            **({} if begun is None else {self._BEGUN: begun}),
            **({self._STOPPED: stopped} if stopped else {}),
            **({self._LEFT: left} if left else {}),
            **self.done,
        }
        write_durably(self.folder / _PROGRESS, json.dumps(known).encode())


def describe_next(project: Project, folder: Path) -> str:
    """Say what the project's next `run` does about a run that is not done, and why."""
    again = f"`adserver quickstart run {project.folder}`"
    steps = Steps.read(folder)
    if folder != project.last_run():
        why = f"{steps.left}, so " if steps is not None and steps.left else ""
        return f"{why}{LATER}: this one stays as it is"
    if steps is None:
        return f"{again} begins a new run"
    if why := steps.why_not_on(project):
        return f"{why}: {again} {'replaces it' if steps.is_replaced else 'begins a new run'}"
    return f"{again} goes on with it"


def _digest(project: Project) -> str:
    """Return a digest of the table and of all settings but where servers listen, which no result shows."""
    # The table's bytes and not its name: a run must not go on with other rows than it began with.
    csv = project.settings.data.csv
    table = project.path(csv).read_bytes() if csv else b""
    sections = (getattr(project.settings, one.name) for one in fields(Settings) if one.name != "servers")
    return sha256(b"".join((*map(encode, sections), table))).hexdigest()

"""One run of a project, command by command, as its owner would type them.

From the user's table to a trained model: encode, task, browsers, dataset, job, export, test.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from adserver.quickstart.check import check, choose_loss, read_table, usual_outputs
from adserver.quickstart.commands import ProjectCommands, describe_refusal
from adserver.quickstart.finishing import ModelFinisher
from adserver.quickstart.measurement import MeasurementPlan, plan_measurement
from adserver.quickstart.project import Project
from adserver.quickstart.runs import NOTHING_ASKED, REPORTED, Rows, RunOptions, Steps, Trained
from adserver.quickstart.settings import DataSettings
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from adserver.records.exported_model import ModelWeights
from adserver.records.job_record import Stop
from adserver.records.job_state import JobState
from adserver.training.defaults import Network, choose_learning_rate, choose_network
from adserver.views.printing import check_parts
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.plural import plural

ORIGIN: Final = "https://ads.example"
# Characters of the project's name in that of a run's task, which has 200
_MOST_NAME: Final = 180
# Runs of one table are compared on the same rows.
_PANEL_SEED: Final = 1


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
class FinishedJob:
    """A job that is done, and what it was trained on: see `Trained` for each."""

    task_id: str
    job_id: str
    job: dict[str, Any]
    untrained: Path
    rows: Rows
    reports: int
    dataset_size: int
    dataset_id: str | None = None
    devices: int | None = None
    measured: dict[str, Any] | None = None
    spent_in_all: dict[str, Any] = field(default_factory=dict)


class Recipe:
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

    def run(self) -> Trained:
        """Run all steps that are not done yet, in order.

        Raises:
            InvalidTask: a command refused; the message is what it said.
            HelperUnavailable: a server ended.
        """
        self._leave_job_that_is_over()
        try:
            return self._run()
        except MaskedLarkError as error:
            # For `status`: the terminal that showed it may be closed.
            self._steps.stop(str(error))
            raise

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

    def _run(self) -> Trained:
        steps, folder = self._steps, self._steps.folder
        described = self._describe(folder)
        loss = choose_loss(self._project, described.num_features, described.num_classes)
        ran = self._train(described, loss)
        finisher = ModelFinisher(
            commands=self._commands,
            folder=folder,
            panel=self._panel,
            loss=loss,
            is_own_model=bool(self._project.settings.model.onnx),
            are_people=self._are_devices,
            tell=self._tell,
        )
        trained, curves = folder / "trained.onnx", self._picture("curves")
        exported = self._commands.read(
            *("adserver", "model", "export", "--job", ran.job_id, str(trained)),
            *("--weights", ModelWeights.BEST.value),
        )
        chosen = exported["rounds_done"]
        if curves:
            self._commands.run("adserver", "job", "show", ran.job_id, "--plot", str(curves))
        tested = untouched = finisher.test(trained)
        calibration = finisher.calibrate(ran.job_id, trained, tested)
        if calibration is not None:
            before = {name: tested.get(name) for name in ("loss", "accuracy", "mean_over_rate")}
            # Calibration has overwritten the file that was tested, and keeps only the AUC as it was.
            calibration, tested = {**calibration, **before}, finisher.test(trained)
        # Kept apart because the choice by the panel flatters what is chosen.
        last_is, raw_last, calibrated_last = folder / "last.onnx", untouched, tested
        if chosen != ran.job["rounds_done"]:
            self._commands.run("adserver", "model", "export", "--job", ran.job_id, str(last_is))
            raw_last = calibrated_last = finisher.test(last_is)
            # As the model is, so that their losses compare.
            if calibration is not None and finisher.calibrate(
                ran.job_id, last_is, raw_last, ModelWeights.LATEST
            ):
                calibrated_last = finisher.test(last_is)
        plain = (
            steps.do("plain", lambda: finisher.train_plainly(ran.untrained, trained, described.encoder))
            if self._is_compared
            else None
        )
        # Rows in clear: deleted before `finish`, after which no run would come back to do it.
        (folder / REPORTED).unlink(missing_ok=True)
        result = Trained(
            run=folder.name,
            **pick_attributes(
                ran,
                ("task_id", "job_id", "dataset_id", "rows", "reports", "dataset_size", "devices", "measured"),
            ),
            rounds=ran.job["rounds_done"],
            chosen_round=chosen,
            **{
                name: tested.get(name)
                for name in ("loss", "accuracy", "auc", "auc_interval", "base_rate", "mean_over_rate")
            },
            predicts=described.classes[1] if described.num_classes == 2 else "",
            **{f"last_{name}": calibrated_last.get(name) for name in ("loss", "accuracy", "auc")},
            warnings=(
                *self._warnings,
                *tested["warnings"],
                *finisher.warn_of_rise(ran.untrained, raw_last),
                *finisher.warn_of_little(chosen, ran.job["rounds_done"], untouched),
                *finisher.warn_of_panel(plain),
            ),
            epsilon=ran.job["epsilon_spent"],
            collusion_epsilon=ran.job["collusion_epsilon_spent"],
            model=str(trained),
            encoder=str(described.encoder or ""),
            model_of_columns=finisher.export_of_columns(
                described.encoder, ran.job_id, is_calibrated=calibration is not None
            ),
            curves=str(curves) if curves else "",
            **ran.spent_in_all,
            calibration=calibration,
            plain=plain,
            name=steps.options.name,
            note=steps.options.note,
        )
        steps.finish(asdict(result))
        for warning in result.warnings:
            self._tell(f"warning: {warning}")
        return result

    def _train(self, described: TableDescription, loss: Loss) -> FinishedJob:
        """Run everything up to the job's end: with reports, a dataset of them, and a job over it."""
        steps = self._steps
        task = steps.do("task", lambda: self._task(described))
        # Sent again, each row would be reported twice: a run that was cut off here is not gone on with.
        sent = steps.do("reports", lambda: self._report(task, self._panel), is_begun_once=True)
        dataset = steps.do("dataset", lambda: self._seal(task))
        measured = steps.do("measured", lambda: self._measure(task, dataset)) if self._measured else None
        # No step of its own: the same seed and panel make the same file again.
        untrained = self._model(described, rows=dataset["admitted"], loss=loss)
        job_id = steps.do("job", lambda: self._submit(task, dataset, untrained, loss))
        self._tell_of_training(job_id)
        job = self._watch(job_id)
        return FinishedJob(
            task_id=task,
            job_id=job_id,
            job=job,
            untrained=untrained,
            rows=_rows(sent, dataset),
            reports=sent["accepted"],
            dataset_size=dataset["admitted"],
            dataset_id=dataset["dataset_id"],
            measured=measured,
            spent_in_all=self._read_spent(dataset) if measured else {},
        )

    def _read_spent(self, dataset: dict[str, Any]) -> dict[str, Any]:
        """Return what training and measurement have cost together: less than the sum of both."""
        [budget] = self._commands.read("adserver", "budget", "--dataset", dataset["dataset_id"])
        return {
            "epsilon_with_measurement": budget["ad_server"]["spent"],
            "collusion_epsilon_with_measurement": budget["colluding"]["spent"],
        }

    @property
    def _panel(self) -> Path:
        """The rows that nobody reports, as features and labels."""
        return self._steps.folder / "panel.npz"

    @property
    def _is_compared(self) -> bool:
        return self._steps.options.compare_plain

    @property
    def _are_devices(self) -> bool:
        return bool(self._project.settings.federated.person)

    def _describe(self, folder: Path) -> TableDescription:
        """Fit an encoder to the user's table, or take the sample as it is."""
        data = self._project.settings.data
        if not data.csv:
            told = self._steps.do(
                "table", lambda: self._commands.read("browser-sim", "describe", "--source", "wbcd")
            )
            wide, classes = told["features"], tuple(told["labels"])
            said = ("--num-features", str(wide), "--classes", str(len(classes)))
            return TableDescription(
                num_features=wide, classes=classes, arguments=(*said, "--default-label", "0")
            )
        encoder = folder / "encoder.json"
        told = self._steps.do("table", lambda: self._fit(data, encoder))
        return TableDescription(
            num_features=told["features"],
            classes=tuple(told["classes"]),
            arguments=(
                "--encoder",
                str(encoder),
                *(("--default-label", "0") if len(told["classes"]) == 2 else ()),
            ),
            encoder=encoder,
        )

    def _fit(self, data: DataSettings, encoder: Path) -> Any:
        table = str(self._project.path(data.csv))
        # Measured columns are secret and a person's is no feature: neither may stand in the public encoder.
        secret = self._measured.table_options if self._measured else ()
        if self._are_devices:
            secret = (*secret, "--ignore", self._project.settings.federated.person)
        options = (*_options_of(data), *secret, *self._planning(data), "-o", str(encoder))
        told = self._commands.read("browser-sim", "encode", "--fit", table, *options)
        words = told["categories"] + told["ids"]
        self._tell(
            f"{plural(told['numbers'] + words, 'column becomes', 'columns become')} "
            f"{plural(told['features'], 'feature')} ({plural(words, 'column')} of words)"
        )
        return told

    def _planning(self, data: DataSettings) -> tuple[str, ...]:
        """Return the options that say what vocabularies are planned for, if any is."""
        if None not in data.vocabularies().values():
            return ()
        # Planned for what browsers will report, not for the rows of the file: a part of them is the panel.
        reports, epsilon = check(self._project).reported, self._project.settings.training.epsilon
        return ("--planned-reports", str(reports), "--planned-epsilon", str(epsilon))

    def _task(self, described: TableDescription, *updates: str) -> str:
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
            *described.arguments,
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

    def _report(self, task: str, panel: Path) -> Any:
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
        told = self._commands.read(
            "browser-sim",
            "run",
            "--task",
            f"http://{at.adserver_http}/v1/tasks/{task}",
            "--to",
            at.adserver_grpc,
            *source,
            "--holdout",
            str(panel),
            "--holdout-fraction",
            str(data.panel),
            *("--holdout-seed", str(_PANEL_SEED)),
            *(("--train-out", str(self._steps.folder / REPORTED)) if self._is_compared else ()),
            "--insecure",
        )
        self._tell(
            f"browsers sealed and sent {plural(told['accepted'], 'report')} of "
            f"{plural(told['read'], 'row')}; "
            f"{plural(told['panel'], 'row is', 'rows are')} held out for testing"
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
    def _measured(self) -> MeasurementPlan | None:
        """The columns to measure, with `[measure]`'s words for them."""
        settings = self._project.settings
        if not settings.measure.is_asked:
            return None
        table = read_table(self._project.path(settings.data.csv))
        return plan_measurement(table, settings.data, settings.measure)

    def _declaration(self) -> tuple[str, ...]:
        """Return the option of `task create` for the measurement's file, which is written here."""
        if self._measured is None:
            return ()
        path = self._steps.folder / "measurement.json"
        write_durably(path, self._measured.file)
        return ("--measurement", str(path))

    def _measure(self, task: str, dataset: dict[str, Any]) -> dict[str, Any]:
        """Measure the dataset, write table and picture, and return what the summary says of it."""
        from adserver.messages.query import ResultMessage
        from adserver.quickstart.measurement_forecast import (
            cut_off_by_group,
            describe_measurement,
            forecast_groups,
        )
        from adserver.views.query import Remarks, means_in, write_result

        settings, plan = self._project.settings, self._measured
        if plan is None:
            raise AssertionError("only a project with [measure] is measured")
        said = self._commands.read(
            *("adserver", "aggregate", "--dataset", dataset["dataset_id"], *plan.query_options),
            *("--epsilon", str(settings.measure.epsilon)),
            # The same id if this run is gone on with: an answer is charged once.
            *("--query-id", sha256(f"measured {task}".encode()).hexdigest()[:32]),
        )
        # Derived from the sums, and no field of the message that is read back.
        said.pop("statistics")
        result = plan.in_units(ResultMessage.model_validate(said).value())
        files = {kind: self._steps.folder / f"measured.{kind}" for kind in ("csv", "json")}
        files |= {"png": picture} if (picture := self._picture("measured")) else {}
        table, reported = read_table(self._project.path(settings.data.csv)), dataset["admitted"]
        forecasts = forecast_groups(table, settings.data, settings.measure, settings.task, reported=reported)
        groups = [row.group for row in result.rows]
        remarks = Remarks(
            lines=describe_measurement(table, settings.data, settings.measure, forecasts),
            columns=cut_off_by_group(table, plan, settings.measure, groups, reported),
        )
        for path in files.values():
            write_result(result, path, means_in(result, plan.filled), remarks)
        self._tell(
            f"measured the {dataset['admitted']} reported rows for epsilon {result.cost.ad_server:.3g}: "
            f"see {files['csv']}"
        )
        return {
            **{kind: str(path) for kind, path in files.items()},
            "clipped_rows": plan.beyond,
            "clipped": {
                one.name: {**asdict(one.clipping), "half_width": one.half_width}
                for one in forecasts
                if one.clipping is not None
            },
            "notes": remarks.lines,
            "counted_by": plan.filled,
            "epsilon": result.cost.ad_server,
            "collusion_epsilon": result.cost.colluding,
        }

    def _picture(self, name: str) -> Path | None:
        """Return the file of a picture, or the reason why it could not be drawn."""
        path = self._steps.folder / f"{name}.png"
        try:
            check_parts([path])
        except InvalidTask as error:
            self._tell(f"no picture: {error}")
            return None
        return path

    def _network(self, rows: int) -> Network:
        """Return the network for so many rows, with the project's hidden layers if it names them."""
        settings = self._project.settings
        rate = self._base_rate
        network = choose_network(
            rows=rows,
            epsilon=settings.training.epsilon,
            columns=self._steps.done["table"]["features"],
            rarest=0.5 if rate is None else min(rate, 1 - rate),
        )
        return network if settings.model.hidden is None else replace(network, hidden=settings.model.hidden)

    @cached_property
    def _base_rate(self) -> float | None:
        """The share of label 1 among the panel's rows, half a row away from 0 and 1; None for more labels."""
        import numpy as np

        labels = np.load(self._panel, allow_pickle=False)["labels"]
        if labels.max(initial=1) > 1:
            return None
        # A panel without one of the labels would give an infinite logit to begin at.
        return float((labels.sum() + 0.5) / (len(labels) + 1))

    def _own_model(self, described: TableDescription, loss: Loss | None) -> Path:
        """Return the file of the project's own model; with a loss, standardised if it is untrained."""
        from adserver.collecting.task_settings import encoder_from
        from adserver.training.column_uses import warn_of_columns
        from adserver.training.eval_set import read_eval_set
        from adserver.training.model_file import prepare_model, read_model
        from adserver.training.standardising import standardise
        from adserver.views.plan import describe_path
        from maskedlark.model.exactness import why_general

        settings = self._project.settings.model
        path, untrained = self._project.path(settings.onnx), self._steps.folder / "untrained.onnx"
        given, encoder = read_model(path), encoder_from(described.encoder)
        prepared = prepare_model(given, num_features=described.num_features, encoder=None)
        for warning in () if encoder is None else warn_of_columns(prepared.file, encoder):
            self._tell(f"warning: {warning}")
        # Devices train any model themselves.
        if loss is None:
            return path
        self._tell("\n".join(describe_path(why_general(prepared.parsed, loss))))
        if not settings.standardise:
            return path
        begun = standardise(given, loss, read_eval_set(self._panel.read_bytes()))
        if begun.told:
            self._tell(f"{begun.told}; [model] standardise = false leaves the file as it is")
        write_durably(untrained, begun.model)
        return untrained

    def _model(self, described: TableDescription, *, rows: int, loss: Loss | None = None) -> Path:
        """Return the model's file: the project's, or the default network for so many rows.

        The project's is standardised for a loss; devices train it as it is.
        """
        model = self._project.settings.model
        if model.onnx:
            return self._own_model(described, loss)
        network = self._network(rows)
        outputs = usual_outputs(described.num_classes, is_on_devices=self._are_devices)
        untrained = self._steps.folder / "untrained.onnx"
        if described.encoder is None:
            widths = (described.num_features, *network.hidden, outputs)
            form = ["--layers", ",".join(map(str, widths))]
        else:
            form = ["--encoder", str(described.encoder), "--outputs", str(outputs)]
            form += ["--hidden", ",".join(map(str, network.hidden))] if network.hidden else []
            form += [] if network.are_numbers_in_tables else ["--word-tables-only"]
            form += ["--base-rate", str(self._base_rate)] if network.clip_norm is not None else []
        if not network.are_numbers_in_tables:
            # A direction that all records share would take most of the clip bound and teach nothing.
            form += ["--centred-on", str(self._panel)]
        form += ["--seed", str(model.seed)]
        self._commands.run("adserver", "model", "create", str(untrained), *form)
        return untrained

    def _steps_of(self, rows: int, model: Path) -> list[str]:
        """Return the options of the learning rate and the clip for so many rows and a model's file."""
        settings = self._project.settings
        network = None if settings.model.onnx else self._network(rows)
        rate, clip = settings.training.learning_rate, None if network is None else network.clip_norm
        if rate is None:
            parameters = self._parameters(model)
            rate = choose_learning_rate(
                rows=rows,
                epsilon=settings.training.epsilon,
                parameters=parameters,
                network=network,
            )
            self._tell(
                f"learning rate {rate:g}, for {plural(rows, 'report')} and {plural(parameters, 'parameter')}"
            )
        if clip is None:
            return ["--learning-rate", str(rate)]
        # Helpers refuse a bound above the one that they signed.
        clip = min(clip, settings.task.clip_norm)
        self._tell(f"a label is rare: the clip bound is {clip:g} in all rounds")
        # A fixed bound divides no gradient, while the rule's rate is of gradients over the bound.
        return ["--learning-rate", str(rate / clip), "--clip-norm", str(clip)]

    def _parameters(self, model: Path) -> int:
        """Return how many parameters a model's file has."""
        features = str(self._steps.done["table"]["features"])
        return int(
            self._commands.read("adserver", "model", "show", str(model), "--num-features", features)[
                "parameters"
            ]
        )

    def _submitted(self, task: str) -> str | None:
        """Return the id of the job that an interrupted run has submitted, or None."""
        known = [one for one in self._commands.read("adserver", "job", "list") if one["task_id"] == task]
        return str(known[-1]["job_id"]) if known else None

    @property
    def _label(self) -> tuple[str, ...]:
        """The options of `job submit` by which the job has the run's name and note."""
        asked = self._steps.options
        return ("--name", asked.name[:MOST_JOB_NAME], "--note", asked.note[:MOST_JOB_NOTE])

    def _submit(self, task: str, dataset: dict[str, Any], model: Path, loss: Loss) -> str:
        """Submit the job, unless an interrupted run has done so; return its id."""
        if (submitted := self._submitted(task)) is not None:
            return submitted
        training = self._project.settings.training
        batch = () if training.batch_size is None else ("--batch-size", str(training.batch_size))
        job = self._commands.read(
            "adserver",
            "job",
            "submit",
            "--task",
            task,
            "--dataset",
            dataset["dataset_id"],
            "--model",
            str(model),
            "--loss",
            loss.value,
            "--rounds",
            str(training.rounds),
            "--optimizer",
            training.optimizer.value,
            *self._steps_of(dataset["admitted"], model),
            "--schedule",
            training.schedule.value,
            "--epsilon",
            str(training.epsilon),
            *batch,
            "--eval-set",
            str(self._panel),
            "--as-it-is",  # what is to be standardised is so already
            "--any-columns",  # the run has warned of them
            *self._label,
        )
        return str(job["job_id"])

    def _tell_of_training(self, job_id: str) -> None:
        self._tell(
            f"training for {plural(self._project.settings.training.rounds, 'round')}; "
            "to follow it from another "
            "shell, run "
            f"`. {self._project.environment_file}`, then `adserver job watch {job_id[:12]}`"
        )

    def _watch(self, job_id: str) -> Any:
        """Follow the job to its end.

        Raises:
            InvalidTask: it was refused, failed or cancelled; the message has its cause.
        """
        # Not `read`: the status of a job that failed is not 0, and its JSON holds the cause.
        ended = self._commands.end("adserver", "job", "watch", job_id, "--json")
        job = json.loads(ended.stdout) if ended.stdout.strip() else None
        if job is None:
            raise InvalidTask(describe_refusal(ended, "adserver job watch"))
        if job["state"] != "done":
            raise InvalidTask(
                f"job {job_id[:12]} is {job['state']} after {plural(job['rounds_done'], 'round')}: "
                f"{job['cause'] or 'see `adserver job show`'}"
            )
        return job


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


def _options_of(data: DataSettings) -> tuple[str, ...]:
    """Return the options by which `browser-sim` reads the table as `[data]` says."""
    named = {
        "--class": data.classes,
        "--ignore": data.ignore,
        "--date": data.dates,
        "--publish": data.publish,
        "--words": data.words,
    }
    options = [part for option, values in named.items() for value in values for part in (option, value)]
    codes = [part for column in data.codes for part in ("--type", f"{column}=category")]
    return ("--label", data.label, *options, *codes)

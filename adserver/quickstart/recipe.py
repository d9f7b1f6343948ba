"""One run of a project, command by command, as its owner would type them.

From the user's table to a trained model: encode, task, browsers, dataset, job, export, test.
"""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from adserver.quickstart.base_recipe import BaseRecipe, TableDescription
from adserver.quickstart.column_check import feature_columns
from adserver.quickstart.commands import describe_refusal
from adserver.quickstart.finishing import ModelFinisher
from adserver.quickstart.model_check import choose_loss, usual_outputs
from adserver.quickstart.people import count_use
from adserver.quickstart.runs import REPORTED, Rows, Trained
from adserver.quickstart.settings import DataSettings
from adserver.records.exported_model import ModelWeights
from adserver.training.defaults import (
    CALIBRATE,
    Network,
    choose_learning_rate,
    choose_network,
    creation_options,
)
from maskedlark.encoding.cells import number
from maskedlark.encoding.identifiers import why_identifiers
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.plural import plural


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


class Recipe(BaseRecipe[Trained]):
    """Trains a project's model once, or goes on with a run that was interrupted; its servers are up."""

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
            is_own_model=bool(self._settings.model.onnx),
            is_rate_named=self._settings.training.learning_rate is not None,
            tell=self._tell,
            are_devices=bool(self._settings.federated.person),
        )
        trained, curves = folder / "trained.onnx", self._picture("curves")
        self._tell("the rounds are done: exporting the model, drawing its curves and testing it on the panel")
        exported = self._commands.read(
            *("adserver", "model", "export", "--job", ran.job_id, str(trained)),
            *("--weights", ModelWeights.BEST.value),
        )
        chosen = exported["rounds_done"]
        if curves:
            self._commands.run("adserver", "job", "show", ran.job_id, "--plot", str(curves))
        tested = untouched = finisher.test(trained)
        calibration, not_calibrated = None, ""
        # The model is trained and paid for: it is worth having without this.
        try:
            calibration = finisher.calibrate(ran.job_id, trained, tested)
        except InvalidTask as error:
            not_calibrated = f"the model cannot be calibrated, and its chances do not add up: {error}"
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
            if calibration is not None:
                with suppress(InvalidTask):
                    if finisher.calibrate(ran.job_id, last_is, raw_last, ModelWeights.LATEST):
                        calibrated_last = finisher.test(last_is)
        plain = (
            steps.do("plain", lambda: finisher.train_plainly(ran.untrained, trained, described.encoder))
            if self._is_compared
            else None
        )
        # Rows in clear: deleted before `finish`, after which no run would come back to do it.
        (folder / REPORTED).unlink(missing_ok=True)
        return Trained(
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
                # What has just failed is no advice
                *(one for one in tested["warnings"] if not (not_calibrated and CALIBRATE in one)),
                *filter(None, [not_calibrated]),
                *finisher.warn_of_rise(ran.untrained, raw_last),
                *finisher.warn_of_little(chosen, ran.job["rounds_done"], untouched),
                *finisher.warn_of_panel(plain),
            ),
            leaks=self._leaks,
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
            rows_per_person=self._settings.task.rows_per_person,
        )

    def _train(self, described: TableDescription, loss: Loss) -> FinishedJob:
        """Run everything up to the job's end: with reports, a dataset of them, and a job over it."""
        steps = self._steps
        sealed = self._collect(described.arguments, self._panel)
        task, dataset, measured = sealed.task_id, sealed.dataset, sealed.measured
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
            rows=sealed.rows,
            reports=sealed.sent["accepted"],
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
    def _are_devices(self) -> bool:
        return bool(self._settings.federated.person)

    def _describe(self, folder: Path) -> TableDescription:
        """Fit an encoder to the user's table, or take the sample as it is."""
        data = self._settings.data
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
        if self._settings.person:
            secret = (*secret, "--ignore", self._settings.person)
        options = (*_options_of(data), *self._kept(data), *secret, *self._planning(data), "-o", str(encoder))
        told = self._commands.read("browser-sim", "encode", "--fit", table, *options)
        words = told["categories"] + told["ids"]
        self._tell(
            f"{plural(told['numbers'] + words, 'column becomes', 'columns become')} "
            f"{plural(told['features'], 'feature')} ({plural(words, 'column')} of words)"
        )
        return told

    def _kept(self, data: DataSettings) -> tuple[str, ...]:
        """Return the options that keep columns of numbers that name rows, which `[data]` does not ignore."""
        answered = {*data.date_orders(), *data.codes, *data.publish, *data.vocabularies()}
        options = list[str]()
        for name in feature_columns(self._table, self._settings):
            counts = Counter(cell for cell in self._table.numbers(name) if cell is not None)
            are_numbers = name not in answered and all(number(cell) is not None for cell in counts)
            if are_numbers and why_identifiers(name, counts):
                options += ["--type", f"{name}=number"]
        return tuple(options)

    def _planning(self, data: DataSettings) -> tuple[str, ...]:
        """Return the options that say what vocabularies are planned for, if any is."""
        if None not in data.vocabularies().values():
            return ()
        settings = self._settings
        # Planned for what browsers will report, not for the rows of the file: a part of them is the panel.
        reports, epsilon = count_use(self._table, settings).reported, settings.epsilon_of_row
        return ("--planned-reports", str(reports), "--planned-epsilon", str(epsilon))

    def _network(self, rows: int) -> Network:
        """Return the network for so many rows, with the project's hidden layers if it names them."""
        settings = self._settings
        rate = self._base_rate
        network = choose_network(
            rows=rows,
            epsilon=settings.epsilon_of_row,
            columns=self._steps.done["table"]["features"],
            rarest=0.5 if rate is None else min(rate, 1 - rate),
        )
        return network if settings.model.hidden is None else replace(network, hidden=settings.model.hidden)

    @cached_property
    def _base_rate(self) -> float | None:
        """The share of label 1 among the panel's rows, as of `find_base_rate`."""
        from adserver.training.default_network import find_base_rate
        from adserver.training.eval_set import read_eval_set

        return find_base_rate(read_eval_set(self._panel.read_bytes()))

    def _own_model(self, described: TableDescription, loss: Loss | None) -> Path:
        """Return the file of the project's own model; with a loss, standardised if it is untrained."""
        from adserver.collecting.task_settings import encoder_from
        from adserver.training.column_uses import warn_of_columns
        from adserver.training.eval_set import read_eval_set
        from adserver.training.model_file import prepare_model, read_model
        from adserver.training.standardising import standardise
        from adserver.views.plan import describe_path
        from maskedlark.model.exactness import why_general

        settings = self._settings.model
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
        model = self._settings.model
        if model.onnx:
            return self._own_model(described, loss)
        network = self._network(rows)
        outputs = usual_outputs(described.num_classes, is_on_devices=self._are_devices)
        untrained = self._steps.folder / "untrained.onnx"
        form = creation_options(
            network,
            encoder_file=None if described.encoder is None else str(described.encoder),
            panel_file=str(self._panel),
            features=described.num_features,
            outputs=outputs,
            base_rate=self._base_rate,
        )
        seed = ("--seed", str(model.seed))
        self._commands.run("adserver", "model", "create", str(untrained), *form, *seed)
        return untrained

    def _steps_of(self, rows: int, model: Path) -> list[str]:
        """Return the options of the learning rate and the clip for so many rows and a model's file."""
        settings = self._settings
        network = None if settings.model.onnx else self._network(rows)
        rate, clip = settings.training.learning_rate, None if network is None else network.clip_norm
        if rate is None:
            parameters = self._parameters(model)
            rate = choose_learning_rate(
                rows=rows,
                epsilon=settings.epsilon_of_row,
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
        return ("--name", asked.name, "--note", asked.note)

    def _submit(self, task: str, dataset: dict[str, Any], model: Path, loss: Loss) -> str:
        """Submit the job, unless an interrupted run has done so; return its id."""
        if (submitted := self._submitted(task)) is not None:
            return submitted
        training = self._settings.training
        batch = () if training.batch_size is None else ("--batch-size", str(training.batch_size))
        rounds = () if self._are_rounds_open else ("--rounds", str(training.usual_rounds))
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
            *rounds,
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

    @property
    def _are_rounds_open(self) -> bool:
        """Whether the job has the rounds of the rule for a person's own network."""
        return self._settings.training.rounds is None and bool(self._settings.model.onnx)

    def _tell_of_training(self, job_id: str) -> None:
        rounds = (
            self._commands.read("adserver", "job", "show", job_id)["rounds"]
            if self._are_rounds_open
            else self._settings.training.usual_rounds
        )
        by_rule = (
            " by the rule for an untrained hidden layer"
            if rounds > self._settings.training.usual_rounds
            else ""
        )
        self._tell(
            f"training for {plural(rounds, 'round')}{by_rule}; "
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
        if job["state"] == "cancelled":
            raise InvalidTask(
                f"job {job_id[:12]} was cancelled after {plural(job['rounds_done'], 'round')}, so this "
                f"run has no model: `adserver quickstart run {self._project.folder}` begins a new one"
            )
        if job["state"] != "done":
            raise InvalidTask(
                f"job {job_id[:12]} is {job['state']} after {plural(job['rounds_done'], 'round')}: "
                f"{job['cause'] or 'see `adserver job show`'}"
            )
        return job


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

"""One run of a project, command by command, as its owner would type them.

From the user's table to a trained model: encode, task, browsers, dataset, job, export, test.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from adserver.quickstart.project import Project
from adserver.quickstart.running import RunningFleet, command
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

ORIGIN: Final = "https://ads.example"


@frozen
class Trained:
    """What `runs/N/summary.json` holds. The accuracy is on the rows that were never reported.

    Attributes:
        accuracy: None for a model that does not classify.
    """

    run: str
    task_id: str
    job_id: str
    reports: int
    dataset_size: int
    rounds: int
    loss: float
    accuracy: float | None
    epsilon: float
    collusion_epsilon: float
    model: str
    curves: str


@frozen
class RecipeSection:
    """What is known of the table.

    Attributes:
        num_features: Bytes of a report.
        num_classes: Labels are the classes 0 to this less one.
        arguments: The options of `task create` that say so.
    """

    num_features: int
    num_classes: int
    arguments: tuple[str, ...]


class Recipe:
    """Runs a project once; its servers are up."""

    def __init__(self, project: Project, tell: Callable[[str], None]) -> None:
        """`tell` gets one line a step."""
        self._project = project
        self._tell = tell

    def run(self) -> Trained:
        """Run all steps, in order.

        Raises:
            InvalidTask: a command refused; the message is what it said.
        """
        settings, folder = self._project.settings, self._project.new_run()
        described = self._describe(folder)
        task = self._task(described)
        panel = folder / "panel.npz"
        reports = self._report(task, panel)
        dataset = self._json("adserver", "dataset", "seal", "--task", task)
        self._tell(f"both helpers opened their shares of {dataset['admitted']} reports, and agree on them")
        loss = settings.training.loss or _loss(described)
        untrained = self._model(folder, described)
        job = self._train(task, dataset["dataset_id"], untrained, panel, loss)
        trained, curves = folder / "trained.onnx", folder / "curves.png"
        self._run("adserver", "model", "export", "--job", job["job_id"], str(trained))
        self._run("adserver", "job", "show", job["job_id"], "--plot", str(curves))
        tested = self._json(
            "adserver", "model", "evaluate", str(trained), "--eval-set", str(panel), "--loss", loss.value
        )
        result = Trained(
            run=folder.name,
            task_id=task,
            job_id=job["job_id"],
            reports=reports,
            dataset_size=dataset["admitted"],
            rounds=job["rounds_done"],
            loss=tested["loss"],
            accuracy=tested.get("accuracy"),
            epsilon=job["epsilon_spent"],
            collusion_epsilon=job["collusion_epsilon_spent"],
            model=str(trained),
            curves=str(curves),
        )
        (folder / "summary.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
        return result

    def _describe(self, folder: Path) -> RecipeSection:
        """Fit an encoder to the user's table, or take the sample as it is."""
        data = self._project.settings.data
        if not data.csv:
            told = self._json("browser-sim", "describe", "--source", "wbcd")
            wide, classes = told["features"], len(told["labels"])
            said = ("--num-features", str(wide), "--classes", str(classes))
            return RecipeSection(
                num_features=wide, num_classes=classes, arguments=(*said, "--default-label", "0")
            )
        if not data.label:
            raise InvalidTask("[data] label names the column of labels of your table")
        encoder = folder / "encoder.json"
        ignored = [part for column in data.ignore for part in ("--ignore", column)]
        table = str(self._project.path(data.csv))
        told = self._json(
            "browser-sim", "encode", "--fit", table, "--label", data.label, *ignored, "-o", str(encoder)
        )
        if told["classes"] is None:
            raise InvalidTask(f"the column {data.label!r} holds values, and quickstart trains on classes")
        self._tell(f"{told['features']} columns become features ({told['categories']} of them words)")
        return RecipeSection(
            num_features=told["features"],
            num_classes=len(told["classes"]),
            arguments=(
                "--encoder",
                str(encoder),
                *(("--default-label", "0") if len(told["classes"]) == 2 else ()),
            ),
        )

    def _task(self, described: RecipeSection) -> str:
        task = self._project.settings.task
        made: str = self._json(
            "adserver",
            "task",
            "create",
            "--wait",
            "--name",
            self._project.folder.name,
            "--origin",
            ORIGIN,
            *described.arguments,
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

    def _report(self, task: str, panel: Path) -> int:
        data, at = self._project.settings.data, self._project.settings.servers
        source = (
            ("--source", "csv", "--csv", str(self._project.path(data.csv)))
            if data.csv
            else ("--source", "wbcd")
        )
        told = self._json(
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
            "--insecure",
        )
        self._tell(f"browsers sealed and sent {told['accepted']} reports; {told['panel']} rows are kept back")
        return int(told["accepted"])

    def _model(self, folder: Path, described: RecipeSection) -> Path:
        model = self._project.settings.model
        if model.onnx:
            return self._project.path(model.onnx)
        outputs = 1 if described.num_classes == 2 else described.num_classes
        widths = (described.num_features, *model.hidden, outputs)
        untrained = folder / "untrained.onnx"
        layers = ",".join(map(str, widths))
        self._run(
            "adserver", "model", "create", str(untrained), "--layers", layers, "--seed", str(model.seed)
        )
        return untrained

    def _train(self, task: str, dataset: str, model: Path, panel: Path, loss: Loss) -> Any:
        training = self._project.settings.training
        batch = () if training.batch_size is None else ("--batch-size", str(training.batch_size))
        self._tell(f"training {training.rounds} rounds; `adserver job watch` follows it from another shell")
        return self._json(
            "adserver",
            "job",
            "submit",
            "--task",
            task,
            "--dataset",
            dataset,
            "--model",
            str(model),
            "--loss",
            loss.value,
            "--rounds",
            str(training.rounds),
            "--optimizer",
            training.optimizer,
            "--learning-rate",
            str(training.learning_rate),
            "--epsilon",
            str(training.epsilon),
            *batch,
            "--eval-set",
            str(panel),
            "--wait",
        )

    def _json(self, program: str, *arguments: str) -> Any:
        return json.loads(self._run(program, *arguments, "--json"))

    def _run(self, program: str, *arguments: str) -> str:
        """Run one command to its end; show its output if it fails."""
        done = subprocess.run(  # noqa: S603  our own program
            [command(program), *arguments],
            env={**os.environ, **self._project.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise InvalidTask(f"{program} {' '.join(arguments[:2])}: {done.stderr.strip()[-2000:]}")
        return done.stdout


def run_project(project: Project, tell: Callable[[str], None]) -> Trained:
    """Run a project once; servers that did not run before are ended again."""
    running = RunningFleet(project, tell)
    was_up = running.is_up
    try:
        running.up()
        return Recipe(project, tell).run()
    finally:
        if not was_up:
            running.down()


def _loss(described: RecipeSection) -> Loss:
    """Return the usual loss for so many classes, for a model with linear outputs."""
    is_binary = described.num_classes == 2
    return Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if is_binary else Loss.CROSS_ENTROPY

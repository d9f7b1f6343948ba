"""What is done with a job's model once it is trained: tested on the panel, calibrated, compared, exported."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.runs import REPORTED
from adserver.records.exported_model import InputForm, ModelWeights
from adserver.training.defaults import should_calibrate
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably

if TYPE_CHECKING:
    from adserver.training.plain_twin import PanelAlone, PlainTwin


def _figures(trained: "PlainTwin | PanelAlone") -> dict[str, Any]:
    """Return what a run's summary says of plain training."""
    found = pick_attributes(trained.evaluation, ("loss", "accuracy", "auc", "auc_interval"))
    return {**found, **pick_attributes(trained, ("learning_rate", "epochs"))}


@frozen
class ModelFinisher:
    """Finishes the model of a run.

    Attributes:
        commands: Runs the project's commands.
        folder: The run's folder.
        panel: The rows that nobody reports, as features and labels.
        loss: What the model was trained with.
        are_people: Whether the panel has several rows of a person, which nothing in it names.
        tell: Gets one line a step.
    """

    commands: ProjectCommands
    folder: Path
    panel: Path
    loss: Loss
    are_people: bool
    tell: Callable[[str], None]

    def test(self, model: Path) -> Any:
        """Return how a model does on the panel."""
        panel = ("--eval-set", str(self.panel))
        return self.commands.read(
            "adserver", "model", "evaluate", str(model), *panel, "--loss", self.loss.value
        )

    def warn_of_rise(self, untrained: Path, last: dict[str, Any]) -> tuple[str, ...]:
        """Return a warning if the last weights do worse on the panel than those before the first round.

        Of two classes each has the loss that calibration would leave it: where labels are rare, clipping
        makes the plain loss rise while the model learns.

        Args:
            untrained: The model before the first round.
            last: How the last weights, not calibrated, do on the panel.
        """
        first, name = self.test(untrained), "calibrated_loss"
        if first.get(name) is None or last.get(name) is None:
            name = "loss"
        if last[name] <= first[name]:
            return ()
        return (
            f"the {name.replace('_', ' ')} rose from {first[name]:.4f} before the first round to "
            f"{last[name]:.4f} after the last one: lower [training] learning_rate, or train with more "
            "reports or a larger epsilon",
        )

    def train_plainly(self, untrained: Path) -> dict[str, Any] | None:
        """Train the network without privacy, and return how it does on the panel.

        On the same rows, and on the panel alone, each of whose rows is scored by training on others.
        """
        from adserver.training.eval_set import read_eval_set
        from adserver.training.model_file import read_model
        from adserver.training.pipeline import LOSS_IS, describe
        from adserver.training.plain_twin import FOLDS, cross_fit_panel, train_plain_twin

        folder = self.folder
        # A run that was interrupted may be gone on with by another command than began it.
        if not (folder / REPORTED).exists():
            self.tell("this run was begun without --compare-plain: the next one can be compared")
            return None
        self.tell("training the same network on the same rows without privacy, to compare")
        network, panel = read_model(untrained), read_eval_set(self.panel.read_bytes())
        reported = read_eval_set((folder / REPORTED).read_bytes())
        twin = train_plain_twin(network, self.loss, reported, panel)
        # So that `model predict` gives chances, as of the private model
        write_durably(folder / "plain.onnx", describe(twin.model, **{LOSS_IS: self.loss.value}))
        # Rows of one person on both sides of a division would flatter what is trained on one of them.
        if self.are_people or len(panel) < FOLDS:
            return {**_figures(twin), "panel_alone": None}
        self.tell("training it on the panel alone, which you have without asking anyone")
        return {**_figures(twin), "panel_alone": _figures(cross_fit_panel(network, self.loss, panel))}

    def warn_of_panel(self, plain: dict[str, Any] | None, tested: dict[str, Any]) -> tuple[str, ...]:
        """Return a warning if training on the panel alone does as well as the private model.

        Args:
            plain: As of `train_plainly`.
            tested: How the private model does on the panel.
        """
        alone = (plain or {}).get("panel_alone") or {}
        for name, shown in (("auc", "AUC"), ("accuracy", "accuracy")):
            private, owners = tested.get(name), alone.get(name)
            if private is not None and owners is not None:
                if owners < private:
                    return ()
                return (
                    f"the network does as well when it is trained on the panel alone ({shown} {owners:.3f}, "
                    f"the private model {private:.3f}): use more reports or a larger epsilon, or do without "
                    "reports",
                )
        return ()

    def calibrate(self, job_id: str, out: Path, tested: dict[str, Any]) -> dict[str, Any] | None:
        """Write the best weights, calibrated on the panel; return both numbers, or say why there are none."""
        if tested.get("mean_over_rate") is None:  # of other losses than those of two classes
            return None
        known = {name: tested[name] for name in ("examples", "base_rate", "mean_over_rate")}
        if not should_calibrate(**known):
            self.tell("the model is not calibrated: its predictions add up, as far as so few panel rows tell")
            return None
        try:
            made = self.commands.read(
                "adserver", "model", "calibrate", "--job", job_id, str(out), *self._on_panel
            )
        # The model is trained and paid for: it is worth having without this.
        except InvalidTask as error:
            self.tell(f"the model is not calibrated: {error}")
            return None
        return {name: made[name] for name in ("scale", "shift")}

    @property
    def _on_panel(self) -> tuple[str, ...]:
        """The options of `model calibrate`."""
        return ("--panel", str(self.panel), "--weights", ModelWeights.BEST.value)

    def export_of_columns(self, encoder: Path | None, job_id: str, *, is_calibrated: bool) -> str:
        """Write the model that takes raw columns; return its file, or nothing and say why."""
        if encoder is None:
            return ""
        out = str(self.folder / "trained-of-columns.onnx")
        made: tuple[str, ...]
        made = ("export", "--job", job_id, out, "--with-encoder", "--weights", ModelWeights.BEST.value)
        if is_calibrated:
            made = ("calibrate", "--job", job_id, out, "--takes", InputForm.COLUMNS.value, *self._on_panel)
        try:
            self.commands.run("adserver", "model", *made)
        except InvalidTask as error:
            self.tell(f"no model of raw columns: {error}")
            return ""
        return out

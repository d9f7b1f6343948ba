"""What is done with a job's model once it is trained: tested on the panel, calibrated, compared, exported."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.runs import REPORTED
from adserver.records.exported_model import InputForm, ModelWeights
from adserver.records.round_figures import has_risen
from adserver.training.defaults import should_calibrate
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably

if TYPE_CHECKING:
    from adserver.training.linear_model import LinearFit
    from adserver.training.paired_comparison import PairedComparison
    from adserver.training.plain_twin import PanelAlone, PlainTwin

_TRAINED: Final = {
    "network": ("learning_rate", "weight_decay", "epochs"),
    "linear": ("penalty", "are_numbers_in_bins"),
}
_COMPARED: Final = ("metric", "difference", "low", "high", "examples", "is_rough")
# Before calibration: clipping halves predictions of rare labels, and more than this learned little.
_FAR: Final = 3.0
_EARLY: Final = 0.15


def _figures(
    trained: "PlainTwin | PanelAlone | LinearFit", compared: "PairedComparison | None"
) -> dict[str, Any]:
    """Return what a run's summary says of plain training, and of the private model next to it."""
    found = pick_attributes(trained.evaluation, ("loss", "accuracy", "auc", "auc_interval"))
    kind = "linear" if hasattr(trained, "penalty") else "network"
    of_private = None if compared is None else pick_attributes(compared, _COMPARED)
    return {
        **found,
        "kind": kind,
        **pick_attributes(trained, _TRAINED[kind]),
        "private_minus_this": of_private,
    }


def _is_default_without_layers(network: bytes, *, is_own: bool) -> bool:
    """Return whether a network adds up what columns say, as the linear model does."""
    import onnx

    nodes = onnx.ModelProto.FromString(network).graph.node
    return not is_own and all(node.op_type != "Relu" for node in nodes)


@frozen
class ModelFinisher:
    """Finishes the model of a run.

    Attributes:
        commands: Runs the project's commands.
        folder: The run's folder.
        panel: The rows that nobody reports, as features and labels.
        loss: What the model was trained with.
        is_own_model: Whether the network is the owner's, and not the default one.
        is_rate_named: Whether [training] has a learning rate, and not the rule's.
        are_devices: Whether people's devices trained it, which send no report.
        tell: Gets one line a step.
    """

    commands: ProjectCommands
    folder: Path
    panel: Path
    loss: Loss
    is_own_model: bool
    is_rate_named: bool
    tell: Callable[[str], None]
    are_devices: bool = False

    @property
    def _more(self) -> str:
        """What a better model takes more of."""
        return "people" if self.are_devices else "reports"

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
        if not has_risen(last[name], first[name]):
            return ()
        lower = "lower [training] learning_rate, or " if self.is_rate_named else ""
        return (
            f"the {name.replace('_', ' ')} rose from {first[name]:.4f} before the first round to "
            f"{last[name]:.4f} after the last one: {lower}train with more {self._more} or a larger epsilon",
        )

    def warn_of_little(self, chosen: int, rounds: int, tested: dict[str, Any]) -> tuple[str, ...]:
        """Return a warning if the model learned little.

        Args:
            chosen: The round whose weights it has.
            rounds: How many were trained.
            tested: How it does on the panel before calibration.
        """
        found, mean = [], tested.get("mean_over_rate")
        if mean is not None and not 1 / _FAR <= mean <= _FAR:
            found.append(f"its mean prediction was {mean:.2f} of the base rate before calibration")
        if chosen <= _EARLY * rounds:
            found.append(f"it did best on the panel after round {chosen} of {rounds}")
        if not found:
            return ()
        section = "federated" if self.are_devices else "training"
        return (
            f"the model learned little: {', and '.join(found)}; lower [{section}] learning_rate, or train "
            f"with more {self._more} or a larger epsilon",
        )

    def train_plainly(self, untrained: Path, private: Path, encoder: Path | None) -> dict[str, Any] | None:
        """Compare the private model with plain training on the same rows, and on the panel alone.

        Args:
            untrained: The model before the first round.
            private: The private model.
            encoder: The encoder of the features; None for the sample.

        Returns:
            What the run's summary says of it, as of `compare_plain`.
        """
        from adserver.collecting.task_settings import encoder_from
        from adserver.training.eval_set import read_eval_set
        from adserver.training.model_file import read_model
        from adserver.training.pipeline import LOSS_IS, describe
        from adserver.training.plain_comparison import compare_plain

        # A run that was interrupted may be gone on with by another command than began it.
        if not (reported := self.folder / REPORTED).exists():
            self.tell("this run was begun without --compare-plain: the next one can be compared")
            return None
        network = read_model(untrained)
        found = compare_plain(
            network,
            read_model(private),
            self.loss,
            read_eval_set(reported.read_bytes()),
            read_eval_set(self.panel.read_bytes()),
            encoder=encoder_from(encoder),
            is_linear=_is_default_without_layers(network, is_own=self.is_own_model),
            tell=self.tell,
        )
        for remark in found.remarks:
            self.tell(remark)
        # So that `model predict` gives chances, as of the private model
        plain = describe(found.plain.model, **{LOSS_IS: found.loss.value})
        write_durably(self.folder / "plain.onnx", plain)
        alone = None if found.alone is None else _figures(found.alone, found.by_alone)
        return {**_figures(found.plain, found.by_plain), "panel_alone": alone, "verdict": found.verdict}

    def warn_of_panel(self, plain: dict[str, Any] | None) -> tuple[str, ...]:
        """Return a warning, which begins with the verdict, unless the model is better than the panel alone.

        Args:
            plain: As of `train_plainly`; without an interval that says which is better there is no warning.
        """
        alone = (plain or {}).get("panel_alone") or {}
        compared = alone.get("private_minus_this")
        if plain is None or compared is None or compared["low"] > 0:
            return ()
        without = "their devices" if self.are_devices else "reports"
        return (f"{plain['verdict']} Use more {self._more} or a larger epsilon, or do without {without}.",)

    def calibrate(
        self, job_id: str, out: Path, tested: dict[str, Any], weights: ModelWeights = ModelWeights.BEST
    ) -> dict[str, Any] | None:
        """Write these weights, calibrated on the panel; return both numbers, None where they need none.

        Raises:
            InvalidTask: they cannot be calibrated; the message says why.
        """
        if tested.get("mean_over_rate") is None:  # of other losses than those of two classes
            return None
        known = {name: tested[name] for name in ("examples", "base_rate", "mean_over_rate")}
        if not should_calibrate(**known):
            self.tell("the model is not calibrated: its predictions add up, as far as so few panel rows tell")
            return None
        made = self.commands.read(
            "adserver", "model", "calibrate", "--job", job_id, str(out), *self._on_panel(weights)
        )
        return {name: made[name] for name in ("scale", "shift")}

    def _on_panel(self, weights: ModelWeights) -> tuple[str, ...]:
        """Return the options of `model calibrate`."""
        return ("--panel", str(self.panel), "--weights", weights.value)

    def export_of_columns(self, encoder: Path | None, job_id: str, *, is_calibrated: bool) -> str:
        """Write the model that takes raw columns; return its file, or nothing and say why."""
        if encoder is None:
            return ""
        out = str(self.folder / "trained-of-columns.onnx")
        made: tuple[str, ...]
        made = ("export", "--job", job_id, out, "--with-encoder", "--weights", ModelWeights.BEST.value)
        if is_calibrated:
            made = ("calibrate", "--job", job_id, out, "--takes", InputForm.COLUMNS.value)
            made += self._on_panel(ModelWeights.BEST)
        try:
            self.commands.run("adserver", "model", *made)
        except InvalidTask as error:
            self.tell(f"no model of raw columns: {error}")
            return ""
        return out

"""What is done with a job's model once it is trained: tested on the panel, calibrated, compared, exported."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.runs import REPORTED
from adserver.records.exported_model import InputForm, ModelWeights
from adserver.training.defaults import should_calibrate
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.runtime.durable_file import write_durably

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adserver.training.eval_set import EvalSet
    from adserver.training.linear_model import LinearFit
    from adserver.training.paired_comparison import PairedComparison
    from adserver.training.plain_twin import PanelAlone, PlainTwin

_TRAINED: Final = {
    "network": ("learning_rate", "weight_decay", "epochs"),
    "linear": ("penalty", "are_numbers_in_bins"),
}
_COMPARED: Final = ("metric", "difference", "low", "high", "examples", "is_rough")
_PRIVATE: Final = "the private model"
_PLAIN: Final = "plain training"
_ALONE: Final = "the panel alone"
_Network = TypeVar("_Network", "PlainTwin", "PanelAlone")
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


def _better(linear: "LinearFit | None", network: _Network) -> "LinearFit | _Network":
    """Return the one with less loss; a network's may be no number."""
    return network if linear is None or network.evaluation.loss < linear.evaluation.loss else linear


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
        are_people: Whether the panel has several rows of a person, which nothing in it names.
        tell: Gets one line a step.
    """

    commands: ProjectCommands
    folder: Path
    panel: Path
    loss: Loss
    is_own_model: bool
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
        return (
            f"the model learned little: {', and '.join(found)}; lower [training] learning_rate, or train "
            "with more reports or a larger epsilon",
        )

    def train_plainly(self, untrained: Path, private: Path, encoder: Path | None) -> dict[str, Any] | None:
        """Train without privacy, and return how the better of the network and a linear model does.

        On the same rows, and on the panel alone, each of whose rows is scored by training on others. The
        private model is compared with both on all rows of the panel, row by row: no model was trained on
        what it scores. The panel has chosen a round of the private model, and settings and a moment of the
        others. The scores of the panel alone come from five models, so that pairs of rows are ordered across
        models too, which costs it a little.

        Args:
            untrained: The model before the first round.
            private: The private model.
            encoder: The encoder of the features; None for the sample.
        """
        from adserver.collecting.task_settings import encoder_from
        from adserver.training.eval_set import FOLDS, read_eval_set
        from adserver.training.inference import predict
        from adserver.training.linear_model import can_fit, cross_fit_linear, fit_linear
        from adserver.training.merged_parameters import separate_parameters
        from adserver.training.model_file import read_model
        from adserver.training.pipeline import LOSS_IS, describe
        from adserver.training.plain_twin import cross_fit_panel, train_plain_twin
        from maskedlark.model.onnx_file import parse

        folder = self.folder
        # A run that was interrupted may be gone on with by another command than began it.
        if not (folder / REPORTED).exists():
            self.tell("this run was begun without --compare-plain: the next one can be compared")
            return None
        self.tell("training the same network, and a linear model, on the same rows without privacy")
        network, panel = read_model(untrained), read_eval_set(self.panel.read_bytes())
        reported = read_eval_set((folder / REPORTED).read_bytes())
        columns, loss = encoder_from(encoder), self.loss
        outputs = parse(separate_parameters(network), num_features=panel.features.shape[1]).output_width
        has_linear = can_fit(columns, outputs)
        twin = train_plain_twin(network, loss, reported, panel)
        linear = fit_linear(columns, loss, reported, panel, outputs=outputs) if has_linear else None
        trained = _better(linear, twin)
        # So that `model predict` gives chances, as of the private model
        trained_by = linear.loss if linear is not None and trained is linear else loss
        write_durably(folder / "plain.onnx", describe(trained.model, **{LOSS_IS: trained_by.value}))
        scores = predict(read_model(private), panel.features)
        by_plain = self._compare(scores, predict(trained.model, panel.features), panel, _PLAIN)
        told = _figures(trained, by_plain)
        # Rows of one person on both sides of a division would flatter what is trained on one of them.
        if self.are_people or len(panel) < FOLDS:
            return {**told, "panel_alone": None, "verdict": self._verdict(None, by_plain)}
        self.tell("training them on the panel alone, which you have without asking anyone")
        linear_alone = cross_fit_linear(columns, loss, panel, outputs=outputs) if has_linear else None
        # The same sums without a penalty learn so few rows by heart, which takes a minute.
        is_linear = _is_default_without_layers(network, is_own=self.is_own_model)
        alone: PanelAlone | LinearFit
        if linear_alone is not None and is_linear:
            alone = linear_alone
        else:
            alone = _better(linear_alone, cross_fit_panel(network, loss, panel))
        by_alone = self._compare(scores, alone.outputs, panel, _ALONE)
        return {
            **told,
            "panel_alone": _figures(alone, by_alone),
            "verdict": self._verdict(by_alone, by_plain),
        }

    def _compare(
        self, scores: "NDArray[Any]", others: "NDArray[Any]", panel: "EvalSet", name: str
    ) -> "PairedComparison | None":
        """Compare the private model's outputs on the panel with another's; None where that says nothing."""
        from adserver.training.paired_comparison import compare_scores

        if self.loss in (Loss.MSE, Loss.POISSON):
            return None
        try:
            return compare_scores(scores, others, panel.labels, names=(_PRIVATE, name))
        # Both are trained: their figures are worth having without this.
        except InvalidTask as error:
            self.tell(f"{_PRIVATE} is not compared with {name}: {error}")
            return None

    def _verdict(self, *found: "PairedComparison | None") -> str:
        """Return what the comparisons say, in a sentence; nothing of none."""
        from adserver.training.paired_comparison import describe_comparisons

        if not (known := [one for one in found if one is not None]):
            return ""
        people = " Several rows of one person make the interval too narrow." if self.are_people else ""
        return describe_comparisons(known) + people

    def warn_of_panel(self, plain: dict[str, Any] | None) -> tuple[str, ...]:
        """Return a warning, which begins with the verdict, unless the model is better than the panel alone.

        Args:
            plain: As of `train_plainly`; without an interval that says which is better there is no warning.
        """
        alone = (plain or {}).get("panel_alone") or {}
        compared = alone.get("private_minus_this")
        if plain is None or compared is None or compared["low"] > 0:
            return ()
        return (f"{plain['verdict']} Use more reports or a larger epsilon, or do without reports.",)

    def calibrate(
        self, job_id: str, out: Path, tested: dict[str, Any], weights: ModelWeights = ModelWeights.BEST
    ) -> dict[str, Any] | None:
        """Write these weights, calibrated on the panel; return both numbers, or say why there are none."""
        if tested.get("mean_over_rate") is None:  # of other losses than those of two classes
            return None
        known = {name: tested[name] for name in ("examples", "base_rate", "mean_over_rate")}
        if not should_calibrate(**known):
            self.tell("the model is not calibrated: its predictions add up, as far as so few panel rows tell")
            return None
        try:
            made = self.commands.read(
                "adserver", "model", "calibrate", "--job", job_id, str(out), *self._on_panel(weights)
            )
        # The model is trained and paid for: it is worth having without this.
        except InvalidTask as error:
            self.tell(f"the model is not calibrated: {error}")
            return None
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

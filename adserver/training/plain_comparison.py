"""A private model next to plain training on the same rows, and next to training on the panel alone.

    found = compare_plain(network, private, loss, reported, panel, encoder=encoder)
    found.verdict          # "The private model ranks 0.010 to 0.040 better than the panel alone, and ..."

What privacy costs, and what reports are worth. Only an owner of the reported rows in the clear can ask.
"""

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adserver.records.html_table import html_table
from adserver.training.eval_set import FOLDS, EvalSet
from adserver.training.inference import Evaluation, predict
from adserver.training.linear_model import LinearFit, can_fit, cross_fit_linear, fit_linear
from adserver.training.merged_parameters import separate_parameters
from adserver.training.paired_comparison import PairedComparison, compare_scores, describe_comparisons
from adserver.training.plain_twin import (
    PANEL_TRAININGS,
    TWIN_TRAININGS,
    PanelAlone,
    PlainTwin,
    cross_fit_panel,
    train_plain_twin,
)
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

if TYPE_CHECKING:
    from adserver.training.rehearsal_pool import OnProgress

_PRIVATE: Final = "the private model"
_PLAIN: Final = "plain training"
_ALONE: Final = "the panel alone"
_NETWORK: Final = "the same network"
_LINEAR: Final = "a linear model"
_Network = TypeVar("_Network", PlainTwin, PanelAlone)


@frozen
class PlainComparison:
    """How a private model does next to models that were trained without privacy.

    Attributes:
        private: How the private model does on the panel.
        network: How the same network does, trained on the same rows.
        linear: How a linear model does that was trained on them; None if it has no room for the outputs.
        plain: The better of both.
        loss: What the outputs of `plain` are for.
        by_plain: The private model minus `plain` on the panel; None where rows do not tell, as of numbers.
        by_network: The private model minus the same network, where `plain` is the linear model.
        alone: The better of both, trained on the panel alone; None for rows of fewer than five people.
        by_alone: The private model minus `alone`.
        are_people: Whether the panel has several rows of a person.
        remarks: Why models are not compared, if so.
    """

    private: Evaluation
    network: Evaluation
    linear: Evaluation | None
    plain: PlainTwin | LinearFit
    loss: Loss
    by_plain: PairedComparison | None
    by_network: PairedComparison | None
    alone: PanelAlone | LinearFit | None
    by_alone: PairedComparison | None
    are_people: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """What the comparisons say, in a sentence; nothing of none."""
        if not (known := [one for one in (self.by_alone, self.by_plain) if one is not None]):
            return ""
        people = " Several rows of one person make the interval too narrow." if self.are_people else ""
        return describe_comparisons(known) + people

    def _rows(self) -> list[tuple[str, str]]:
        told = [(_PRIVATE, self.private.describe()), (f"{_PLAIN} of {_NETWORK}", self.network.describe())]
        if self.linear is not None:
            told.append((f"{_PLAIN} of {_LINEAR}", self.linear.describe()))
        if self.alone is not None:
            kind = _LINEAR if isinstance(self.alone, LinearFit) else _NETWORK
            told.append((f"{_ALONE}, {kind}", self.alone.evaluation.describe()))
        for one in (self.by_plain, self.by_network, self.by_alone):
            if one is not None:
                told.append((f"{one.names[0]} minus {one.names[1]}", one.describe_difference()))
        told += [("note", one) for one in self.remarks]
        return [*told, *([("verdict", self.verdict)] if self.verdict else [])]

    def __repr__(self) -> str:
        """Show figures, differences with their intervals, and the verdict."""
        return "\n".join(f"{escape(name)}: {escape(value)}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        return html_table((), self._rows())


def compare_plain(
    network: bytes,
    private: bytes,
    loss: Loss,
    reported: EvalSet,
    panel: EvalSet,
    *,
    encoder: Encoder | None,
    is_linear: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    progress: "OnProgress" = lambda _done, _all: None,
) -> PlainComparison:
    """Train without privacy, on the same rows and on the panel alone, and compare a private model with both.

    Each row of the panel is scored by models that did not learn from it: the panel alone by five, each
    trained on four fifths of it. The panel has chosen a round of the private model, and settings and a moment
    of the others. Pairs of rows are ordered across the five models too, which costs the panel alone a little.

    Args:
        network: The ONNX file of the network before training.
        private: That of the private model, of the same input.
        loss: What both were trained with.
        reported: The rows that the private model was trained on.
        panel: Other rows.
        encoder: Of the features; None: each byte is a number.
        is_linear: Whether the network adds up what columns say, as the linear model does, so that the panel
            alone need not be given the network: without a penalty it learns so few rows by heart.
        tell: Gets one line a step.
        progress: As of a rehearsal.

    Guarantees: equal arguments give equal results on one kind of machine.

    Raises:
        InvalidModel: no model that a job could train.
        JobRefused(MALFORMED): records do not fit the model.
    """
    tell("training the same network, and a linear model, on the same rows without privacy")
    outputs = parse(separate_parameters(network), num_features=panel.features.shape[1]).output_width
    has_linear, has_alone = can_fit(encoder, outputs), panel.num_people >= FOLDS
    has_network_alone = has_alone and not (has_linear and is_linear)
    done, of = count(1), TWIN_TRAININGS + has_network_alone * PANEL_TRAININGS

    def on_trained() -> None:
        progress(next(done), of)

    progress(0, of)
    twin = train_plain_twin(network, loss, reported, panel, on_trained=on_trained)
    linear = fit_linear(encoder, loss, reported, panel, outputs=outputs) if has_linear else None
    plain, scores = _better(linear, twin), predict(private, panel.features)
    alone: PanelAlone | LinearFit | None = None
    if has_alone:
        tell("training them on the panel alone, which you have without asking anyone")
        alone = cross_fit_linear(encoder, loss, panel, outputs=outputs) if has_linear else None
        if has_network_alone:
            alone = _better(alone, cross_fit_panel(network, loss, panel, on_trained=on_trained))

    remarks: list[str] = []

    def compare(others: NDArray[Any], name: str) -> PairedComparison | None:
        if loss in (Loss.MSE, Loss.POISSON):
            return None
        try:
            return compare_scores(scores, others, panel.labels, names=(_PRIVATE, name))
        # Both are trained: their figures are worth having without this.
        except InvalidTask as error:
            remarks.append(f"{_PRIVATE} is not compared with {name}: {error}")
            return None

    is_of_line = isinstance(plain, LinearFit)
    by_plain = compare(
        predict(plain.model, panel.features), f"{_PLAIN} of {_LINEAR if is_of_line else _NETWORK}"
    )
    by_network = None
    if is_of_line and by_plain is not None:
        by_network = compare(predict(twin.model, panel.features), f"{_PLAIN} of {_NETWORK}")
    by_alone = None if alone is None else compare(alone.outputs, _ALONE)
    return PlainComparison(
        private=Evaluation.of(scores.astype(np.float64), panel.labels, loss),
        network=twin.evaluation,
        linear=None if linear is None else linear.evaluation,
        plain=plain,
        # A network's loss may be of a probability, where a linear model gives its logit.
        loss=plain.loss if isinstance(plain, LinearFit) else loss,
        by_plain=by_plain,
        by_network=by_network,
        alone=alone,
        by_alone=by_alone,
        are_people=panel.num_people < len(panel),
        remarks=tuple(remarks),
    )


def _better(linear: LinearFit | None, network: _Network) -> LinearFit | _Network:
    """Return the one with less loss; a network's may be no number."""
    return network if linear is None or network.evaluation.loss < linear.evaluation.loss else linear

"""Two models on the same labelled rows: how much better one is, with an interval of the difference.

    found = compare_scores(private, plain, labels, names=("the private model", "plain training"))
    found.low, found.difference, found.high
    found.verdict          # "The private model ranks 0.001 to 0.020 worse than plain training (95 %, ..."

What both models are right and wrong about cancels out of a difference: the more alike they rank, the narrower
its interval next to those of the two figures.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.html_table import html_table
from maskedlark.errors import InvalidTask
from maskedlark.escape import escape
from maskedlark.frozen import frozen

# Of Student's t and of the normal distribution: 95 % between both sides.
_CONFIDENCE: Final = 0.975
_ERRORS_OF_95: Final = 1.96
# With fewer rows of a class no interval covers what it says.
_FEWEST: Final = 10
# With fewer, an interval of models of unlike AUC near 1 covers less: with 10, 88 % in 1,500 simulated tables.
_FEW: Final = 20
# How far each class's mean may be off where all rows agree: a share of one of its rows.
_LEAST_ERROR: Final = 0.1
NAMES: Final = ("the model", "the other")
"""What a reader is told that two models are, if nothing else is said."""
_SHOWN: Final = {"auc": "AUC", "accuracy": "accuracy"}
# The verb of a difference, and how it is called if the model's figure is higher or lower
_WORDS: Final = {"auc": ("ranks", "better", "worse"), "accuracy": ("is right", "more often", "less often")}
_UNDECIDED: Final = "cannot be told apart from"
# Ends of a narrower interval would look alike with three digits
_NARROW: Final = 0.009


@frozen
class PairedComparison:
    """How two models do on the same rows.

    The interval is for other rows like these. It holds neither the noise of training (another run, seed or
    noise gives another model) nor what a choice by the same rows flatters, and takes rows for independent:
    several rows of one person make it too narrow.

    Attributes:
        metric: `auc` of two classes, `accuracy` of more.
        value: That of the model.
        other_value: That of the other.
        difference: `value` - `other_value`.
        low: The lower end of the 95 % interval of the difference.
        high: The upper end.
        examples: The rows that both are scored on.
        is_rough: Whether a class has under 20 rows, so that the interval of an AUC is rather too narrow.
        names: What a reader is told that the models are.
    """

    metric: str
    value: float
    other_value: float
    difference: float
    low: float
    high: float
    examples: int
    is_rough: bool = False
    names: tuple[str, str] = NAMES

    @property
    def _finding(self) -> tuple[str, str]:
        """A verb, and what follows it in a sentence about the model."""
        digits = 4 if self.high - self.low < _NARROW else 3
        if self.low <= 0 <= self.high:
            return _UNDECIDED, f"{self.names[1]} ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        near, far = sorted((abs(self.low), abs(self.high)))
        verb, higher, lower = _WORDS[self.metric]
        how = higher if self.low > 0 else lower
        return verb, f"{near:.{digits}f} to {far:.{digits}f} {how} than {self.names[1]}"

    @property
    def verdict(self) -> str:
        """One sentence for a reader: which model is better, if these rows tell."""
        return describe_comparisons((self,))

    def describe_difference(self) -> str:
        """Return the difference with its interval, for a reader."""
        return f"{self.difference:+.4f} (95 %: {self.low:+.4f} to {self.high:+.4f})"

    def _rows(self) -> list[tuple[str, str]]:
        metric = _SHOWN[self.metric]
        return [
            (f"{metric} of {self.names[0]}", f"{self.value:.4f}"),
            (f"{metric} of {self.names[1]}", f"{self.other_value:.4f}"),
            ("difference", self.describe_difference()),
            ("verdict", self.verdict),
        ]

    def __repr__(self) -> str:
        """Show both figures, their difference with its interval, and the verdict."""
        return "\n".join(f"{escape(name)}: {escape(value)}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        return html_table((), self._rows())


def describe_comparisons(found: Sequence[PairedComparison]) -> str:
    """Return one sentence about a model that was compared with one or more others on the same rows."""
    first, told, before = found[0], "", ""
    for one in found:
        verb, what = one._finding
        if verb == before:
            told += f" or {what}" if verb == _UNDECIDED else f", and {what}"
        else:
            told += f"{', and' if before else ''} {verb} {what}"
        before = verb
    name = first.names[0]
    few = "; few rows of a class: the interval is rather too narrow" if first.is_rough else ""
    kind = _SHOWN[first.metric]
    of = f"{kind}, 95 %, on the same {first.examples} rows{few}"
    return f"{name[:1].upper()}{name[1:]}{told} ({of})."


def compare_scores(
    scores: NDArray[np.floating[Any]],
    others: NDArray[np.floating[Any]],
    labels: NDArray[np.integer],
    *,
    names: tuple[str, str] = NAMES,
) -> PairedComparison:
    """Compare two models' scores of the same rows, row by row.

    Two classes are compared by AUC, with DeLong's covariance of two correlated AUCs, where ties count half,
    and Student's t for the rows of the rarer class. More are compared by accuracy, with the interval of
    Agresti and Min.

    Args:
        scores: Of the model: of two classes (rows,), (rows, 1) or (rows, 2), the higher the more likely class
            1; of more (rows, classes), the highest for the class that it predicts.
        others: The other's, of as many classes. Only the order of a model's scores counts: one may give
            chances and the other logits.
        labels: The code of each row's class.
        names: What a reader is told that the models are.

    Source: E. DeLong, D. DeLong and D. Clarke-Pearson, "Comparing the areas under two or more correlated
        receiver operating characteristic curves", Biometrics 44, 1988; A. Agresti and Y. Min, "Simple
        improved confidence intervals for comparing matched proportions", Statistics in Medicine 24, 2005.

    Raises:
        InvalidTask: scores or labels have another shape or other values, or there are too few rows.
    """
    first, second = (
        _scores(one, len(labels), name) for one, name in zip((scores, others), names, strict=True)
    )
    if first.shape != second.shape:
        wide = " and ".join(str(one.shape[1] if one.ndim > 1 else 2) for one in (first, second))
        raise InvalidTask(f"the scores are of {wide} classes: expected as many in both")
    classes = first.shape[1] if first.ndim > 1 else 2
    if not np.isin(labels, np.arange(classes)).all():
        raise InvalidTask(f"labels are other than the codes 0..{classes - 1} of {classes} classes")
    found = (
        _compare_areas(first, second, labels == 1) if classes == 2 else _compare_hits(first, second, labels)
    )
    metric, value, other_value, difference, half_width, is_rough = found
    return PairedComparison(
        metric=metric,
        value=value,
        other_value=other_value,
        difference=value - other_value,
        low=max(-1.0, difference - half_width),
        high=min(1.0, difference + half_width),
        examples=len(labels),
        is_rough=is_rough,
        names=names,
    )


_Found = tuple[str, float, float, float, float, bool]
"""Metric, both values, the middle of the interval, half its width, and whether it is rough."""


def _scores(given: NDArray[np.floating[Any]], rows: int, name: str) -> NDArray[np.float64]:
    """Return scores of two classes (rows,), of more (rows, classes)."""
    if given.ndim not in (1, 2) or len(given) != rows or (given.ndim == 2 and not given.shape[1]):
        raise InvalidTask(
            f"the scores of {name} have the shape {given.shape}: expected one row for each of {rows} labels, "
            "as (rows,) or (rows, classes)"
        )
    found = given.astype(np.float64)
    if found.ndim == 2 and found.shape[1] <= 2:
        with np.errstate(invalid="ignore"):  # of two infinite ones nothing is known
            found = found[:, 0] if found.shape[1] == 1 else found[:, 1] - found[:, 0]
    if np.isnan(found).any():
        raise InvalidTask(f"the scores of {name} hold NaN: leave these rows out of both models' scores")
    return found


def _compare_areas(
    first: NDArray[np.float64], second: NDArray[np.float64], is_positive: NDArray[np.bool_]
) -> _Found:
    from scipy.special import stdtrit

    positives = int(is_positive.sum())
    fewest = min(positives, len(is_positive) - positives)
    if fewest < _FEWEST:
        raise InvalidTask(
            f"of {len(is_positive)} rows {positives} are of class 1: expected at least {_FEWEST} of each "
            "class, as fewer cannot tell two models apart; give more labelled rows"
        )
    (of_positives, of_negatives), (others, other_negatives) = (
        _placements(one, is_positive) for one in (first, second)
    )
    variance = sum(
        float(np.var(one - other, ddof=1)) / len(one) + (_LEAST_ERROR / len(one)) ** 2
        for one, other in ((of_positives, others), (of_negatives, other_negatives))
    )
    value, other_value = float(of_positives.mean()), float(others.mean())
    half_width = float(stdtrit(fewest - 1, _CONFIDENCE)) * math.sqrt(variance)
    return "auc", value, other_value, value - other_value, half_width, fewest < _FEW


def _placements(
    scores: NDArray[np.float64], is_positive: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, of each positive, the share of negatives below it; of each negative, of positives above it."""
    positives, negatives = scores[is_positive], scores[~is_positive]

    def share_below(of: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
        ascending = np.sort(others)
        below = np.searchsorted(ascending, of, "left") + np.searchsorted(ascending, of, "right")
        return np.asarray(below / (2 * len(others)))

    return share_below(positives, negatives), 1 - share_below(negatives, positives)


def _compare_hits(
    first: NDArray[np.float64], second: NDArray[np.float64], labels: NDArray[np.integer]
) -> _Found:
    if not len(labels):
        raise InvalidTask("there are no labelled rows: expected at least one")
    hits, others = (one.argmax(axis=1) == labels for one in (first, second))
    # Half a row more in each cell of the table of both: else few rows that differ look like certainty.
    rows = len(labels) + 2
    only_first, only_second = float((hits & ~others).sum()) + 0.5, float((others & ~hits).sum()) + 0.5
    middle = (only_first - only_second) / rows
    error = math.sqrt(only_first + only_second - rows * middle**2) / rows
    return "accuracy", float(hits.mean()), float(others.mean()), middle, _ERRORS_OF_95 * error, False

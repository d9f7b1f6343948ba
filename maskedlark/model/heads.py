"""Several heads on one model: what each label code means for each of them.

A report's label is a code. The job's table says, for each head and code, the head's target and its weight, or
that the code says nothing about it. A record's loss is the sum over heads of weight times loss, so all heads
share one gradient, one clip and one noise. The table is public: it is part of the job, and both helpers check
it. Class weights are a table of one head.

Targets and weights are integers in units of 2^-16, so that every party holds the same numbers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import build, canonical
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss, check_loss

if TYPE_CHECKING:
    from maskedlark.model.graph import Model

UNITS: Final = 1 << 16
"""The number 1, as targets and weights have it."""
MAX_HEADS: Final = 16
MAX_CODES: Final = 1024
MAX_WEIGHT: Final = 1024
_MAX_TARGET: Final = 1 << 20
_MAX_ENTRIES: Final = 2048
_MAX_NAME: Final = 64
_COLUMN: Final = re.compile(r"(.+)\[(\d{1,6})\]", re.DOTALL)

_Target: TypeAlias = Annotated[int, Field(ge=-_MAX_TARGET * UNITS, le=_MAX_TARGET * UNITS)] | None
_Weight: TypeAlias = Annotated[int, Field(ge=0, le=MAX_WEIGHT * UNITS)]


@canonical
class Head:
    """One head: an output of the model, its loss, and what each label code means for it.

    Attributes:
        name: What people call it.
        output: The model's output that it reads, or one column of an output: "logits[1]".
        loss: Its loss, of a logit, a number or a log-rate.
        targets: For each code the target in units of 2^-16, a class for cross-entropy; None: the code says
            nothing about this head, and counts nothing.
        weights: For each code what its loss is multiplied with, in units of 2^-16.
    """

    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    output: Annotated[str, Field(min_length=1, max_length=256)]
    loss: Loss
    targets: Annotated[tuple[_Target, ...], Field(min_length=2, max_length=MAX_CODES)]
    weights: Annotated[tuple[_Weight, ...], Field(min_length=2, max_length=MAX_CODES)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.weights) != len(self.targets):
            raise ValueError(
                f"weights must be one a code: there are {len(self.targets)} targets and {len(self.weights)} "
                "weights"
            )
        if not any(
            weight for target, weight in zip(self.targets, self.weights, strict=True) if target is not None
        ):
            raise ValueError("targets must have a code with a target and a weight above 0")
        return self

    def setting(self) -> dict[str, Any]:
        """Return the head as a person writes it: numbers, not units."""
        return {
            "name": self.name,
            "output": self.output,
            "loss": self.loss.value,
            "targets": tuple(None if target is None else target / UNITS for target in self.targets),
            "weights": tuple(weight / UNITS for weight in self.weights),
        }

    def columns(self, model: "Model") -> slice:
        """Return the columns of the model's output that this head reads.

        Raises:
            InvalidModel(WRONG_LOSS): the model has no such output.
        """
        start = 0
        chosen = _COLUMN.fullmatch(self.output)
        for name, width in model.outputs:
            # The whole name first: an output may itself be called "logits[1]".
            if self.output == name:
                return slice(start, start + width)
            if chosen and chosen[1] == name and int(chosen[2]) < width:
                return slice(start + int(chosen[2]), start + int(chosen[2]) + 1)
            start += width
        outputs = ", ".join(f"{name!r} of {width}" for name, width in model.outputs)
        raise _reject(f"the head {self.name!r} reads the output {self.output!r}: the model has {outputs}")

    def known_codes(self) -> NDArray[np.bool_]:
        """Return (codes,) whether each code says anything about this head."""
        return np.array([target is not None for target in self.targets])

    def classes(self) -> NDArray[np.int64]:
        """Return (codes,) the class that each code is for a head of classes; 0 where it says nothing.

        Raises:
            InvalidModel(WRONG_LOSS): the targets are not classes.
        """
        if self.loss not in (Loss.CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS) or any(
            target is not None and target % UNITS for target in self.targets
        ):
            raise _reject(f"the head {self.name!r} is not of classes: only heads of classes are evaluated")
        return np.array([(target or 0) // UNITS for target in self.targets], np.int64)


@canonical
class Heads:
    """All heads of a job."""

    heads: Annotated[tuple[Head, ...], Field(min_length=1, max_length=MAX_HEADS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what in ("name", "output"):
            found = [getattr(head, what) for head in self.heads]
            twice = [one for one in found if found.count(one) > 1]
            if twice:
                raise ValueError(f"heads must differ in {what}: {twice[0]!r} is given twice")
        if sum(len(head.targets) for head in self.heads) > _MAX_ENTRIES:
            raise ValueError(f"heads must have at most {_MAX_ENTRIES} targets in all")
        return self

    @classmethod
    def of(cls, settings: Iterable[Mapping[str, Any]], outputs: Sequence[str] = ()) -> Self:
        """Return heads as a person writes them.

        Each has `output`, `targets` (one a label code, None where the code says nothing) and, if they are not
        the defaults, `loss` (binary_cross_entropy_with_logits), `weights` (1 each) and `name` (the output's).

        Args:
            settings: The heads.
            outputs: The names of the model's outputs, where they are known. A head may leave out `output`
                where there is only one.

        Raises:
            InvalidTask: naming what is wrong.
        """
        heads = [_head(number, dict(one), outputs) for number, one in enumerate(settings)]
        return build(cls, {"heads": heads})

    @property
    def value(self) -> str:
        """The heads in one line, where a single loss has its name."""
        return ", ".join(f"{head.name}: {head.loss.value}" for head in self.heads)

    def find_head(self, name: str) -> Head:
        """Return one head; the only one, if the name is empty.

        Raises:
            InvalidTask: no head has this name, or there are several and no name is given.
        """
        found = [head for head in self.heads if head.name == name or not name]
        if len(found) != 1:
            raise InvalidTask(
                f"head must be one of {', '.join(repr(head.name) for head in self.heads)}, not {name[:80]!r}"
            )
        return found[0]


TrainedLoss: TypeAlias = Loss | Heads
"""What a job minimises."""


@frozen
class _BoundHead:
    """One head as engines use it.

    Attributes:
        loss: Its loss.
        columns: Of the model's output.
        targets: float64, one a code; 0 where the code says nothing.
        weights: float64, one a code; 0 where the code says nothing.
    """

    loss: Loss
    columns: slice
    targets: NDArray[np.float64]
    weights: NDArray[np.float64]


@frozen
class BoundHeads:
    """All heads of a job, bound to the columns of its model's output.

    Attributes:
        heads: The heads.
        codes: How many label codes there are.
    """

    heads: tuple[_BoundHead, ...]
    codes: int


def _head(number: int, given: dict[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    if len(outputs) == 1:
        given.setdefault("output", outputs[0])
    unknown = set(given) - {"name", "output", "loss", "targets", "weights"}
    missing = {"output", "targets"} - set(given)
    if unknown or missing:
        what = f"has the unknown setting {min(unknown)[:80]!r}" if unknown else f"lacks {min(missing)!r}"
        several = f"; the model's outputs are {', '.join(map(repr, outputs))}" if len(outputs) > 1 else ""
        raise InvalidTask(
            f"heads[{number}] {what}: expected output, targets, and perhaps loss, weights, name{several}"
        )
    targets = list(given["targets"])
    weights = given.get("weights")
    return {
        "name": given.get("name") or given["output"],
        "output": given["output"],
        "loss": given.get("loss") or Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        "targets": tuple(None if one is None else _units(number, "targets", one) for one in targets),
        "weights": tuple(
            _units(number, "weights", one) for one in ([1] * len(targets) if weights is None else weights)
        ),
    }


def _units(number: int, what: str, given: Any) -> int:
    """Return a number in units of 2^-16, the nearest; refuse one that would vanish."""
    # To Python true is a number; in a table it is a mistake.
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= 1 << 40:
        raise InvalidTask(f"heads[{number}].{what} must be numbers below 2^20, got {str(given)[:40]!r}")
    units = round(given * UNITS)
    if given and not units:
        raise InvalidTask(
            f"heads[{number}].{what} has {given:g}, which is nearer to 0 than 2^-17: use 0 or a larger number"
        )
    return units


def trained_loss(given: str | Heads) -> TrainedLoss:
    """Return heads as they are, and the loss of a name.

    Raises:
        InvalidModel(UNKNOWN_LOSS)
    """
    return given if isinstance(given, Heads) else Loss.named(given)


def check_trained(model: "Model", loss: TrainedLoss, num_classes: int | None) -> None:
    """Refuse a loss, or heads, that do not fit the model's outputs and the task's classes.

    Args:
        model: The model.
        loss: What the job minimises.
        num_classes: The classes of the task, or None where labels are numbers.

    Raises:
        InvalidModel(WRONG_LOSS): the loss does not fit; or the task's labels are not classes, a table lacks a
            code or has too many, an output is unknown, is read by two heads, or has a width that the loss
            does not take, or a target is none of its loss.
    """
    if isinstance(loss, Heads):
        _check_heads(model, loss, num_classes)
    else:
        check_loss(model, loss, num_classes)


def check_tables(heads: Heads, num_classes: int | None) -> None:
    """Refuse heads whose targets are not one for each class of the task, whatever the model is.

    Raises:
        InvalidModel(WRONG_LOSS)
    """
    if num_classes is None:
        raise _reject("heads require a task of classes: the labels of this one are numbers")
    for head in heads.heads:
        if len(head.targets) != num_classes:
            raise _reject(
                f"the head {head.name!r} has targets for {len(head.targets)} label codes, the task has "
                f"{num_classes}: give one a code, null where it says nothing"
            )


def _check_heads(model: "Model", heads: Heads, num_classes: int | None) -> None:
    check_tables(heads, num_classes)
    # By column, because one head may read a whole output of which another names a column.
    taken: dict[int, str] = {}
    for head in heads.heads:
        columns = head.columns(model)
        _check_targets(head, columns.stop - columns.start)
        for column in range(columns.start, columns.stop):
            if column in taken:
                raise _reject(
                    f"the heads {taken[column]!r} and {head.name!r} read one output: use one of them"
                )
            taken[column] = head.name


def _check_targets(head: Head, width: int) -> None:
    given = [target for target in head.targets if target is not None]
    if head.loss is Loss.BINARY_CROSS_ENTROPY:
        raise _reject(
            f"the head {head.name!r} takes logits: leave out the model's last Sigmoid, and use "
            "binary_cross_entropy_with_logits"
        )
    if head.loss is Loss.CROSS_ENTROPY:
        if width < 2 or any(target % UNITS or not 0 <= target < width * UNITS for target in given):
            raise _reject(
                f"the head {head.name!r} needs targets that are classes 0..{width - 1} of its output"
            )
        return
    if width != 1:
        raise _reject(f"the head {head.name!r} needs an output of one column, {head.output!r} has {width}")
    if head.loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS and not all(0 <= one <= UNITS for one in given):
        raise _reject(f"the head {head.name!r} needs targets from 0 to 1")


def bind(loss: TrainedLoss, model: "Model") -> "Loss | BoundHeads":
    """Return a loss as engines use it: heads with their columns and numbers."""
    if isinstance(loss, Loss):
        return loss
    bound = []
    for head in loss.heads:
        targets, weights = _numbers(head)
        bound.append(
            _BoundHead(loss=head.loss, columns=head.columns(model), targets=targets, weights=weights)
        )
    return BoundHeads(heads=tuple(bound), codes=len(loss.heads[0].targets))


@lru_cache(maxsize=64)
def _numbers(head: Head) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a head's targets and weights, exact float64 numbers, 0 where a code says nothing."""
    known = head.known_codes()
    targets = np.array([target or 0 for target in head.targets], np.float64) / UNITS
    return targets, np.where(known, np.array(head.weights, np.float64) / UNITS, 0.0)


def classes_scored(model: "Model", loss: TrainedLoss) -> int | None:
    """Return how many classes an evaluation by a loss, or by one head, chooses among; None of one score."""
    if isinstance(loss, Heads):
        columns = loss.heads[0].columns(model)
        return columns.stop - columns.start if loss.heads[0].loss is Loss.CROSS_ENTROPY else None
    return model.output_width if loss is Loss.CROSS_ENTROPY else None


def _reject(why: str) -> InvalidModel:
    return InvalidModel(ModelReason.WRONG_LOSS, why)

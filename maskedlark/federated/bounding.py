"""From a device's trained difference to the bounded integers that it shares.

The steps are: clip, weigh, quantise toward zero.

    bound = UpdateBound(clip_norm=1.0, frac_bits=24)
    vectors = bound_updates(differences, counts, bound, layer_sizes)  # (devices, parameters + extra), int64

The order matters: the float clip only brings the norm near the bound; the *integers* are checked, exactly,
and shrunk until they are within it. So the sensitivity that is charged is true of what leaves the device,
whatever rounding did before.

A vector's coordinates: the parameters; then, if asked for, the device's weight; then, if asked for, whether
it was clipped. Both extra coordinates are part of the sensitivity. A cover vector is zero in all of them.

Source: McMahan et al. 2018, section 2 (weights, flat and per-layer clipping); Andrew et al. 2021 (the count
coordinate).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import canonical
from maskedlark.federated.local_training import Differences
from maskedlark.numbers.field import SignedVector
from maskedlark.numbers.lengths import root_up
from maskedlark.privacy.clip import Clip, Norm

MAX_UNITS: Final = (1 << 31) - 1
"""The largest bound in units, so that squares of coordinates fit 62 bits."""

EXTRA_SHIFT: Final = 3
"""An extra coordinate is an eighth of the bound, as `Clip.count_units`: under 1 % more norm."""

# From this share of the bound on, a difference counts as clipped. One that was clipped in training lies at
# the bound.
_REACHED: Final = 1.0 - 2.0**-16


@canonical
class UpdateBound:
    """What one device can add to a round's sum. Public; bound to the round.

    Attributes:
        clip_norm: The bound S on the L2 norm of a device's part, in the units of the parameters.
        frac_bits: Coordinates are integers in units of 2^-frac_bits.
        is_per_layer: Whether each of m layers is clipped by itself, to S / sqrt(m).
        weight_cap: A device of n examples weighs min(n / weight_cap, 1); None where every device weighs 1.
        is_weight_aware: Whether weight times difference is clipped, instead of the difference. For a fixed
            denominator only: with the clipped one the paper's Lemma 1 is false (a weight of 1/1000 may then
            move the mean by 500 S).
        is_weight_summed: Whether a coordinate carries the weight, for the clipped denominator.
        is_counted: Whether a coordinate carries +1 for a difference within the bound and -1 for a clipped
            one.
    """

    clip_norm: Annotated[float, Field(gt=0.0, le=1e6)]
    frac_bits: Annotated[int, Field(ge=8, le=30)] = 24
    is_per_layer: bool = False
    weight_cap: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    is_weight_aware: bool = False
    is_weight_summed: bool = False
    is_counted: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 1 << EXTRA_SHIFT <= self.clip.sensitivity <= MAX_UNITS:
            raise ValueError("clip_norm times 2^frac_bits must be in 8..2^31-1: change frac_bits")
        if self.is_weight_aware and self.is_weight_summed:
            raise ValueError("weight-aware clipping goes with a fixed denominator, not with a summed weight")
        return self

    @property
    def clip(self) -> Clip:
        """The bound on the parameters' part."""
        return Clip(
            norm=Norm.L2,
            bound=self.clip_norm,
            frac_bits=self.frac_bits,
            is_counted=self.is_counted,
            is_per_layer=self.is_per_layer,
        )

    @property
    def extra_units(self) -> int:
        """The magnitude of an extra coordinate at weight 1."""
        return self.clip.sensitivity >> EXTRA_SHIFT

    @property
    def extra_coordinates(self) -> int:
        """The number of coordinates after the parameters."""
        return int(self.is_weight_summed) + int(self.is_counted)

    @property
    def sensitivity(self) -> int:
        """The most that one device moves a sum in L2, in units, extra coordinates included, rounded up."""
        return root_up(self.clip.sensitivity**2 + self.extra_coordinates * self.extra_units**2)

    def at(self, clip_norm: float) -> "UpdateBound":
        """Return these settings with another bound S."""
        return replace(self, clip_norm=clip_norm)

    def weights(self, counts: Sequence[int]) -> NDArray[np.float64]:
        """Return each device's weight in [0, 1]; 0 for a device without examples."""
        examples = np.asarray(counts, np.float64)
        if self.weight_cap is None:
            return (examples > 0).astype(np.float64)
        return np.minimum(examples / self.weight_cap, 1.0)

    def project(self, differences: Differences, layer_sizes: Sequence[int]) -> Differences:
        """Clip the differences to this bound in floats: the paper clips after every local batch."""
        values = differences.astype(np.float64)
        _clip(values, self, layer_sizes)
        return values.astype(np.float32)


def bound_updates(
    differences: Differences, counts: Sequence[int], bound: UpdateBound, layer_sizes: Sequence[int]
) -> SignedVector:
    """Return the integers that each device shares, one row a device; a simulation passes many rows.

    Args:
        differences: (devices, parameters), finite.
        counts: Examples that each device trained on; a device with none gives zeros.
        bound: The round's.
        layer_sizes: The model's, summing to the parameters.

    Returns:
        (devices, parameters + bound.extra_coordinates).

    Guarantees: each row's part of parameters has an exact integer L2 norm of at most the clip's; each layer's
        of at most its share, where layers are clipped apart; a row depends on its own device alone.

    Raises:
        ValueError: a difference is not finite.
    """
    # A NaN passes comparisons with a bound, and as an integer is whatever the processor makes of it.
    if not np.isfinite(differences).all():
        raise ValueError("a difference is not finite: use a smaller learning rate on the device")
    weights = bound.weights(counts)
    values = differences.astype(np.float64)
    # Before the clip or after it: the bound is on the weighted difference, or on the difference.
    if bound.is_weight_aware:
        values *= weights[:, None]
    norms, within = _clip(values, bound, layer_sizes)
    if not bound.is_weight_aware:
        values *= weights[:, None]
    quantised = _quantise(values, norms, bound, layer_sizes)
    extra = []
    if bound.is_weight_summed:
        # Toward zero: a weight is never above its share of the sensitivity.
        extra.append(np.trunc(weights * bound.extra_units).astype(np.int64))
    if bound.is_counted:
        # A device without examples counts as neither: it must stay zero in all coordinates.
        extra.append(np.where(weights > 0, np.where(within, bound.extra_units, -bound.extra_units), 0))
    return np.concatenate([quantised, *(column[:, None] for column in extra)], axis=1)


def _norm_squares(vectors: SignedVector) -> list[int]:
    """Return the exact square of each row's L2 norm; coordinates below 2^31 in magnitude."""
    squares = vectors * vectors
    # A square has up to 62 bits, and three of them may overflow: their halves are summed apart.
    high = (squares >> 31).sum(axis=1)
    low = (squares & ((1 << 31) - 1)).sum(axis=1)
    return [(int(a) << 31) + int(b) for a, b in zip(high, low, strict=True)]


def _clip(
    values: NDArray[np.float64], bound: UpdateBound, layer_sizes: Sequence[int]
) -> tuple[list[Clip], NDArray[np.bool_]]:
    """Scale rows, or their layers, to the bound in place; return each part's clip, and the rows within."""
    parts = _parts(bound, layer_sizes)
    within = np.ones(len(values), np.bool_)
    start = 0
    for clip, size in parts:
        part = values[:, start : start + size]
        norms = np.sqrt((part * part).sum(axis=1))
        within &= norms <= clip.bound * _REACHED
        # A tiny number in place of 0: an update of zeros stays zeros, and no quotient is a NaN.
        part *= np.minimum(1.0, clip.bound / np.maximum(norms, np.finfo(np.float64).tiny))[:, None]
        start += size
    return [clip for clip, _ in parts], within


def _quantise(
    values: NDArray[np.float64], clips: list[Clip], bound: UpdateBound, layer_sizes: Sequence[int]
) -> SignedVector:
    """Truncate toward zero, then shrink rows until their integers are within the bound."""
    # By a power of two, which is exact: truncation alone rounds, and it only shortens.
    scaled = np.ldexp(values, bound.frac_bits)
    quantised = np.trunc(scaled).astype(np.int64)
    start = 0
    for clip, (_, size) in zip(clips, _parts(bound, layer_sizes), strict=True):
        place = slice(start, start + size)
        limit = clip.sensitivity**2
        over = [row for row, square in enumerate(_norm_squares(quantised[:, place])) if square > limit]
        # What floats rounded up is taken back in steps of a part in 16 million, until the integers fit.
        while over:
            scaled[over, place] *= 1.0 - 2.0**-24
            quantised[over, place] = np.trunc(scaled[over, place]).astype(np.int64)
            over = [row for row in over if _norm_squares(quantised[row : row + 1, place])[0] > limit]
        start += size
    return quantised


def _parts(bound: UpdateBound, layer_sizes: Sequence[int]) -> list[tuple[Clip, int]]:
    """Return the clip and the length of each part that is clipped separately."""
    if not bound.is_per_layer:
        return [(bound.clip, sum(layer_sizes))]
    each = bound.clip.of_each(len(layer_sizes))
    return [(each, size) for size in layer_sizes]

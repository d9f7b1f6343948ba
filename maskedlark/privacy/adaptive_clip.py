"""A clip bound that follows a quantile of the gradients' norms, privately.

In a job that asks for it, every value carries one more coordinate: +w if its gradient was within the bound of
the round, -w if it was clipped. It is masked, summed, blinded and noised like the others, and its part of the
value's norm is part of the sensitivity (`Clip`), so that it is paid for by the noise on everything. From the
noised sum the ad server reads about which share of the gradients was within, and moves the bound; it sends
each round's bound behind the round's weights, and so binds it in the transcript. A helper takes any bound up
to the job's clip_norm, or the task's where the job has none.

The optimizer gets the mean gradient over the bound. So the learning rate is the length of the step of a round
in which all gradients are clipped and agree, and the step and its noise do not shrink with the bound.

Source: G. Andrew, O. Thakkar, H. B. McMahan, S. Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", 2021, algorithm 1: the geometric update, with their one noised count in place of a second
mechanism.
"""

import math
import struct
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.clip import Clip

BOUND_BYTES: Final = 8
STEPS_PER_OCTAVE: Final = 16
"""Bounds are sent rounded to such steps.

A bound that has settled stays the same, and so does the noise that helpers draw ahead.
"""
LEAST_BOUND: Final = 2.0**-12
"""The smallest bound, as a share of the largest that the job allows."""


@canonical
class AdaptiveClip:
    """How the ad server moves the bound; nothing that a helper needs to know.

    Attributes:
        quantile: The share of gradients that should be within the bound. A low one makes the predictions of
            rare labels too small (docs/explanation/utility.md).
        learning_rate: How fast it moves: a round in which all are within, or none, changes its logarithm by
            about half of this.
        initial: The first bound, as a share of the largest that the job allows.
    """

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    learning_rate: Annotated[float, Field(gt=0.0, le=2.0)] = 0.2
    initial: Annotated[float, Field(ge=LEAST_BOUND, le=1.0)] = 0.1

    def next(self, share_of_largest: float, excess: float) -> float:
        """Return the bound after a round, as a share of the largest that the job allows.

        Args:
            share_of_largest: The bound before, in the same unit.
            excess: The noised mean of +1 for each gradient within and -1 for each clipped; any number.
        """
        within = min(1.0, max(0.0, (1.0 + excess) / 2.0))
        moved = share_of_largest * math.exp(-self.learning_rate * (within - self.quantile))
        return min(1.0, max(LEAST_BOUND, moved))


class RoundInput(NamedTuple):
    """What the ad server sends for one round of such a job."""

    weights: bytes
    bound: float

    def encode(self) -> bytes:
        """Encode the weights, then the bound as a little-endian float64. Called by the ad server."""
        return self.weights + struct.pack("<d", self.bound)

    @classmethod
    def decode(cls, encoded: bytes, clip: Clip) -> "RoundInput":
        """Parse a round's input. Called by a helper.

        Args:
            encoded: From the ad server.
            clip: The largest that the job allows.

        Raises:
            JobRefused(MALFORMED): too short, or the bound is not in [LEAST_BOUND / 2, 1] times the job's.
        """
        if len(encoded) < BOUND_BYTES:
            raise JobRefused(
                JobReason.MALFORMED,
                f"a round of an adaptive job ends with its clip bound, {BOUND_BYTES} bytes",
            )
        weights, (bound,) = encoded[:-BOUND_BYTES], struct.unpack("<d", encoded[-BOUND_BYTES:])
        if not clip.bound * LEAST_BOUND / 2 <= bound <= clip.bound:  # also false for NaN
            raise JobRefused(
                JobReason.MALFORMED,
                f"the round's clip bound is {bound:g}, the job allows up to {clip.bound:g}, "
                "and at least 2^-13 of it",
            )
        return cls(weights=weights, bound=bound)


def on_grid(share_of_largest: float) -> float:
    """Round the bound down to the next power of 2^(1/16), the form in which it is sent."""
    return float(2.0 ** (math.floor(math.log2(share_of_largest) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE))

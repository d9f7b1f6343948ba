"""A device's secret coin: whether it answers a round with its update, with cover, or not at all.

Devices sample themselves. With cover, a device that was not drawn sends a share of the zero vector, which
no other party can distinguish from an update. Then sampling amplifies privacy against the ad server, against
a helper, and against both together.

What the caller must keep, or the claim is void: toss once a (task, job, round); store the coin, the report id
and the sealed bytes before sending anything; send only those bytes again.
"""

from enum import StrEnum, unique
from fractions import Fraction
from math import floor
from typing import Final

from maskedlark.randomness import Randomness

_WORD: Final = 1 << 64


@unique
class Part(StrEnum):
    """What a device does in a round."""

    UPDATE = "update"
    COVER = "cover"
    SILENT = "silent"


def toss(sampling_rate: float, cover_rate: float, randomness: Randomness) -> Part:
    """Toss a device's coin for one round.

    Args:
        sampling_rate: The probability q of an update, in (0, 1].
        cover_rate: The probability c with which a device that is not drawn sends cover, in [0, 1].
        randomness: 16 bytes are taken, always.

    Guarantees: the probability of an update is q rounded down to a multiple of 2^-64, and that of cover,
        among the others, is c rounded up: whoever sees an upload finds an update in it no more often than is
        charged.

    Raises:
        ValueError: a rate is outside its range.
    """
    if not (0 < sampling_rate <= 1 and 0 <= cover_rate <= 1):
        raise ValueError("sampling_rate must be in (0, 1] and cover_rate in [0, 1]")
    # Both, whatever the first says: how many bytes are taken must not tell the coin.
    drawn, covered = (int.from_bytes(randomness(8), "little") for _ in range(2))
    if drawn < floor(Fraction(sampling_rate) * _WORD):
        return Part.UPDATE
    # Not floored: c rounds up, because more cover only hides updates better.
    return Part.COVER if covered < Fraction(cover_rate) * _WORD else Part.SILENT

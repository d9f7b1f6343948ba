"""The bound on what one record can add to a sum: the number that every privacy claim is calibrated to."""

from dataclasses import replace
from enum import StrEnum, unique
from math import isqrt, ldexp
from typing import assert_never

from maskedlark.frozen import frozen
from maskedlark.numbers.lengths import root_up


@unique
class Norm(StrEnum):
    """The norm in which a value is clipped.

    It decides the noise that fits: Laplace for L1, Gaussian for L2.
    """

    L1 = "l1"
    L2 = "l2"


@frozen
class Clip:
    """A clip bound on fixed-point vectors.

    Attributes:
        norm: The norm that is bounded.
        bound: The bound itself, in the units of the gradient.
        frac_bits: Values are carried as integers in units of 2^-frac_bits.
        is_counted: Whether each value carries one more coordinate, which is positive if it was within the
            bound (`adaptive_clip`).
        is_per_layer: Whether each layer's part of a value is clipped separately, to the layer's bound,
            instead of the value as a whole.
    """

    norm: Norm
    bound: float
    frac_bits: int
    is_counted: bool = False
    is_per_layer: bool = False

    @property
    def sensitivity(self) -> int:
        """The bound in units of 2^-frac_bits, rounded down: exact, the same integer for every party."""
        numerator, denominator = self.bound.as_integer_ratio()
        return (numerator << self.frac_bits) // denominator

    def of_each(self, layers: int) -> "Clip":
        """Return an equal bound on each layer's part such that the whole stays within this bound.

        The integers' squares, or sums, add up.

        McMahan et al. 2018 ("per-layer clipping" with S_j = S / sqrt(m)) in L2; S / m in L1.
        """
        whole = self.sensitivity
        match self.norm:
            case Norm.L1:
                units = whole // layers
            case Norm.L2:
                units = isqrt(whole * whole // layers)
            case _:
                assert_never(self.norm)
        # Rounded down, so that what a float64 cannot hold makes a layer's bound smaller and never larger.
        excess = max(0, units.bit_length() - 53)  # what a float64 does not hold
        return replace(self, bound=ldexp(units >> excess << excess, -self.frac_bits), is_per_layer=False)

    @property
    def count_units(self) -> int:
        """The magnitude of the coordinate that counts values within the bound; 0 if values are not counted.

        An eighth of the bound adds less than 1 % to the L2 norm, and its sum over a batch tells a share of
        the records to within about six noise multipliers' worth of records.
        """
        return self.sensitivity >> 3 if self.is_counted else 0

    @property
    def released_sensitivity(self) -> int:
        """The most that one record moves a sum, in the clip's norm, rounded up.

        It counts the record's value and the coordinate that tells whether it was within the bound.
        """
        match self.norm:
            case Norm.L1:
                return self.sensitivity + self.count_units
            case Norm.L2:
                return root_up(self.sensitivity**2 + self.count_units**2)

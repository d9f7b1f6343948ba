"""The bound on what one record can add to a sum: the number that every privacy claim is calibrated to."""

from dataclasses import dataclass
from enum import StrEnum, unique
from fractions import Fraction


@unique
class Norm(StrEnum):
    """The norm in which a value is clipped; it decides the noise that fits: Laplace for L1, Gaussian for L2."""

    L1 = "l1"
    L2 = "l2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip bound on fixed-point vectors.

    Attributes:
        norm: The norm that is bounded.
        bound: The bound itself, in the units of the gradient.
        frac_bits: Values are carried as integers in units of 2^-frac_bits.
    """

    norm: Norm
    bound: float
    frac_bits: int

    @property
    def sensitivity(self) -> int:
        """The bound in units of 2^-frac_bits, rounded down: exact, the same integer for every party."""
        return int(Fraction(self.bound) * 2**self.frac_bits)

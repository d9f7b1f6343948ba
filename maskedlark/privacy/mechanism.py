"""The kinds of noise, without what draws it: command lines and settings import them."""

from enum import StrEnum, unique


@unique
class Mechanism(StrEnum):
    """The distribution of the noise.

    It decides the norm in which values are clipped: L1 for Laplace, L2 for Gaussian.
    """

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"
    NONE = "none"


@unique
class NoiseDivision(StrEnum):
    """How much of a release's noise each helper adds."""

    FULL = "full"
    """Each helper adds all of it, so that either one's noise alone is enough."""
    SPLIT = "split"
    """Each helper adds half of the variance: the sum has it once, and one helper's noise alone is less.

    Gaussian only, since the sum of two Gaussians is Gaussian and nothing like it holds of Laplace."""

"""Where the simulation's chances come from.

One independent stream per purpose, replayable when there is a seed.
"""

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, seeded, system_randomness, uniform


@frozen
class Draws:
    """Random streams for everything that a run draws.

    With a seed every stream can be replayed, so the masks are predictable: for simulation only. Without, all
    streams are the operating system's.

    Attributes:
        seed: -2^127 to 2^127 - 1, or None.
    """

    seed: int | None

    def stream(self, purpose: str) -> Randomness:
        """Return the stream of one purpose.

        The same bytes for the same seed and purpose, independent of all other purposes.
        """
        return system_randomness if self.seed is None else seeded(self.seed, f"browser_sim {purpose}")

    def permutation(self, count: int, purpose: str) -> NDArray[np.intp]:
        """Return the numbers 0 to count - 1 in random order."""
        # Stable: numpy's other sorts may order equal draws otherwise on another processor.
        return np.argsort(uniform(count, self.stream(purpose)), kind="stable")

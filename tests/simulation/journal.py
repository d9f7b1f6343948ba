"""What one run writes down: two runs of a seed write the same."""

import hashlib
from dataclasses import dataclass, field

from tests.simulation.kernel import Kernel


@dataclass(kw_only=True)
class Journal:
    """Everything that was observed, and how much was done.

    Attributes:
        kernel: Time.
        operations: Things that people and browsers did.
        lines: With the moment at which each was written.
    """

    kernel: Kernel
    operations: int = 0
    lines: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Write something down."""
        self.lines.append(f"{self.kernel.now_s:.6f} {what}")

    def digest(self) -> str:
        """Of all that was written down."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

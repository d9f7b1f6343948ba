"""What goes wrong, and when: every fault is a function of the seed and of the name of its occasion, never of what went wrong before.

An occasion is "the 17th RunRound that north gets", or "the 3rd time that north is about to commit Ledger.add_round". So taking one fault
out of a run leaves the others where they were, which is what lets a failing run be replayed and made smaller.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

MESSAGE_FAULTS: Final = ("drop_request", "drop_reply", "duplicate", "late", "cut")
CRASH: Final = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often things go wrong.

    Attributes:
        message: Chance that something happens to one message.
        crash: Chance that a process dies at one persistence boundary.
    """

    message: float = 0.12
    crash: float = 0.012


@dataclass(kw_only=True)
class Faults:
    """The faults of one run.

    Attributes:
        seed: Of the run.
        rates: How often.
        allowed: If given, only these happen: "occasion=fault".
        is_on: Off while the fleet settles at the end.
        happened: What did, in order.
    """

    seed: int
    rates: Rates = field(default_factory=Rates)
    allowed: frozenset[str] | None = None
    is_on: bool = True
    happened: list[str] = field(default_factory=list)
    _occasions: Counter[str] = field(default_factory=Counter)

    def of_message(self, what: str) -> str | None:
        """The fault of the next message of a kind."""
        return self._draw(what, self.rates.message, MESSAGE_FAULTS)

    def is_crash(self, point: str) -> bool:
        """Whether the process dies at this passing of a point."""
        return self._draw(point, self.rates.crash, (CRASH,)) is not None

    def random(self, what: str) -> Random:
        """A stream for details, of the seed and the name alone."""
        return Random(f"{self.seed} {what}")

    def _draw(self, what: str, rate: float, kinds: tuple[str, ...]) -> str | None:
        self._occasions[what] += 1
        if not self.is_on or rate <= 0:
            return None
        occasion = f"{what} #{self._occasions[what]}"
        stream = Random(f"{self.seed} {occasion}")
        if stream.random() >= rate:
            return None
        fault = stream.choice(kinds)
        name = f"{occasion}={fault}"
        if self.allowed is not None and name not in self.allowed:
            return None
        self.happened.append(name)
        return fault

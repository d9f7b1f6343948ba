"""What goes wrong, and when.

Every fault is a function of the seed and of the name of its occasion, never of what went wrong before.

An occasion is "the 17th RunRound that north gets", or "the 3rd time that north is about to commit
Ledger.add_round". So taking one fault out of a run leaves the others where they were, which is what lets a
failing run be replayed and made smaller.
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
        aimed_at: Points at which every process dies when it first passes them, so that the rare ones are
            crashed at too.
        allowed: If given, only these happen: "occasion=fault".
        is_on: Off while the fleet settles at the end.
        happened: What did, in order.
        crashed_at: The points at which some process died.
    """

    seed: int
    rates: Rates = field(default_factory=Rates)
    aimed_at: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    is_on: bool = True
    happened: list[str] = field(default_factory=list)
    crashed_at: set[str] = field(default_factory=set)
    _occasions: Counter[str] = field(default_factory=Counter)

    def of_message(self, what: str) -> str | None:
        """The fault of the next message of a kind."""
        return self._draw(what, self.rates.message, MESSAGE_FAULTS)

    def is_crash(self, process: str, point: str) -> bool:
        """Whether a process dies at this passing of a point."""
        what = f"{process} at {point}"
        is_sure = point in self.aimed_at and not self._occasions[what] and self.rates.crash > 0
        is_dying = self._draw(what, 1.0 if is_sure else self.rates.crash, (CRASH,)) is not None
        if is_dying:
            self.crashed_at.add(point)
        return is_dying

    def random(self, what: str) -> Random:
        """A stream for details, of the seed and the name alone."""
        return Random(f"{self.seed} {what}")

    def _draw(self, what: str, rate: float, kinds: tuple[str, ...]) -> str | None:
        if not self.is_on:
            return None
        self._occasions[what] += 1
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

"""Instances that a process has read or written lately, so that most draws read no database.

    at_hand = InstancesAtHand(weights=387)
    at_hand.lately(place, now_s=now_s)           # None: read it from the database, and `put` it
    at_hand.move(changed)                        # a transaction of this process has committed

Each change of an instance counts one return in the same transaction, so the count of returns names a state of
all instances, whichever process made it. Instances of another count are forgotten.

What is at hand may be older than what another process wrote since, by `OLDEST_S` at most. To a device that is
a draw a moment earlier: it sends the count of returns back, so its update is counted as in flight for longer.
"""

from collections.abc import Mapping
from dataclasses import field
from threading import Lock
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector

OLDEST_S: Final = 0.02
# Of a job's instances at hand.
_MOST_BYTES: Final = 64 << 20


@frozen(eq=False)
class DrawnInstances:
    """What a device gets.

    Attributes:
        instance: The weights, in units of the grid.
        returns: How many updates were accepted before; the device sends it back, so that updates in flight
            can be counted.
    """

    instance: SignedVector
    returns: int


@frozen(eq=False)
class Changed:
    """What one transaction changed.

    Attributes:
        before: The count of returns before.
        after: And after.
        instances: The new ones, by place.
        at_s: A moment at which no other process could write, of a clock that goes forward.
    """

    before: int
    after: int
    instances: Mapping[int, SignedVector] = field(repr=False)
    at_s: float


class InstancesAtHand:
    """Instances of one job, of one count of returns. Safe to share between threads."""

    def __init__(self, *, weights: int) -> None:
        """Hold instances of so many weights, up to 64 MiB."""
        self._most = _MOST_BYTES // (8 * weights)
        self._lock = Lock()
        self._returns = -1
        self._as_of_s = float("-inf")
        self._instances: dict[int, SignedVector] = {}

    def lately(self, place: int, *, now_s: float) -> DrawnInstances | None:
        """Return the cached instance at a place if it was the newest `OLDEST_S` ago."""
        with self._lock:
            instance = self._instances.get(place)
            if instance is None or now_s > self._as_of_s + OLDEST_S:
                return None
            return DrawnInstances(instance=instance, returns=self._returns)

    def get(self, returns: int, place: int) -> SignedVector | None:
        """Return the cached instance at a place as of a count of returns."""
        with self._lock:
            return self._instances.get(place) if returns == self._returns else None

    def put(self, returns: int, place: int, instance: SignedVector, *, at_s: float) -> None:
        """Keep what was read, after `at_s`. Of an older count than what is at hand, nothing is kept."""
        with self._lock:
            # Instances of two counts together would be a state that never was.
            if returns > self._returns:
                self._returns, self._instances = returns, {}
            if returns == self._returns:
                self._as_of_s = max(self._as_of_s, at_s)
                if len(self._instances) < self._most:
                    self._instances[place] = instance

    def move(self, changed: Changed) -> None:
        """Follow a transaction that has committed; all else is forgotten if others wrote in between."""
        with self._lock:
            # Another thread has read a later state while this one's transaction was committed.
            if changed.after <= self._returns:
                return
            kept = self._instances if changed.before == self._returns else {}
            self._returns, self._instances, self._as_of_s = changed.after, kept, changed.at_s
            for place, instance in changed.instances.items():
                if place in kept or len(kept) < self._most:
                    kept[place] = instance

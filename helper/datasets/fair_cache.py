"""What a helper keeps in memory to be faster, within a number of bytes that all ad servers share.

    cache = FairCache[bytes, OpenedDataset](capacity_bytes=1 << 30)
    cache.put(dataset_id, dataset, num_bytes=..., owner=host_of(task.origin))
    cache.get(dataset_id)                            # None once it made room for others

Past its capacity the ad server that holds most gives up what it used least recently: so one cannot flush what
another one keeps, however much it brings.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

from maskedlark.frozen import frozen

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@frozen
class _Kept(Generic[_Value]):
    """A value, the bytes that it takes, and the ad server that they count for."""

    value: _Value
    num_bytes: int
    owner: str


class FairCache(Generic[_Key, _Value]):
    """Values by key. Safe to share between threads."""

    def __init__(self, capacity_bytes: int) -> None:
        """Keep nothing yet."""
        self.capacity_bytes = capacity_bytes
        self._lock = Lock()
        self._kept: OrderedDict[_Key, _Kept[_Value]] = OrderedDict()
        self._taken: Counter[str] = Counter()

    def get(self, key: _Key) -> _Value | None:
        """Return a value, if it is still kept; it counts as used."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            return kept.value

    def put(self, key: _Key, value: _Value, *, num_bytes: int, owner: str) -> list[_Value]:
        """Keep a value as the one that was used last, in place of an earlier one of its key.

        Args:
            key: Its name.
            value: What is kept.
            num_bytes: The memory that it takes.
            owner: The host of the ad server that it is kept for.

        Returns:
            The values that are no longer kept: the replaced one, and those that made room; or this one, which
            evicts no other, if it is larger than the capacity.
        """
        with self._lock:
            gone = self._remove(key)
            if num_bytes > self.capacity_bytes:
                return [*gone, value]
            self._kept[key] = _Kept(value=value, num_bytes=num_bytes, owner=owner)
            self._taken[owner] += num_bytes
            while self._taken.total() > self.capacity_bytes:
                ((most, _),) = self._taken.most_common(1)
                # Keys lie in the order of their last use: an owner's first is its least recent.
                gone += self._remove(next(one for one, kept in self._kept.items() if kept.owner == most))
            return gone

    def pop(self, key: _Key) -> _Value | None:
        """Return a value and keep it no longer: of two callers at most one gets it."""
        with self._lock:
            return next(iter(self._remove(key)), None)

    def _remove(self, key: _Key) -> list[_Value]:
        """Under the lock: forget a key, and return the value that it had."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return []
        self._taken -= Counter({kept.owner: kept.num_bytes})  # which forgets an owner that has none
        return [kept.value]

"""The arrays that a round fills, kept for the job's next round.

    shelf = BufferShelf(capacity_bytes=1 << 27)
    with shelf.lent(job) as buffers:
        deltas = buffers.part("layer 0").empty("deltas", (2, 512, 10))

The first touch of memory costs more than the arithmetic of a small round: the kernel finds and clears a page
for every 512 numbers. An allocator may return freed memory to the operating system, and glibc keeps a
separate arena for each thread that answers a round.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

SHELF_BYTES: Final = 1 << 27


class _Counted:
    """How many bytes the arrays of a set of buffers take."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0


class Buffers:
    """Arrays by name, for one thread of one round. Not safe to share between threads.

    Guarantees: two names never share memory. What `empty` gives holds anything, until the next call with the
        same name. They are freed with the last reference to them, and need no garbage collector.
    """

    __slots__ = ("_arrays", "_counted", "_parts")

    def __init__(self, counted: "_Counted | None" = None) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._parts: dict[str, Buffers] = {}
        # shared with the parts: a reference to the whole would be a cycle, whose arrays wait for the garbage
        # collector, which a server runs seldom
        self._counted = _Counted() if counted is None else counted

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole, of all its parts together."""
        return self._counted.num_bytes

    def part(self, name: str) -> "Buffers":
        """Return the buffers of a part of the work, with a separate namespace."""
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = Buffers(self._counted)
        return found

    def empty(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an uninitialised array, in C order. One name has one dtype."""
        size = prod(shape)
        kept = self._arrays.get(name)
        if kept is None or kept.size < size:
            del kept  # the smaller one goes before the larger one comes
            kept = self._larger(name, size, dtype)
        return kept[:size].reshape(shape)

    def zeros(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an array of zeros, in C order. One name has one dtype."""
        found = self.empty(name, shape, dtype)
        found.fill(0)
        return found

    def _larger(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Replace a name's array by a larger one."""
        if (before := self._arrays.pop(name, None)) is not None:
            self._counted.num_bytes -= before.nbytes
            del before
        made = self._arrays[name] = np.empty(size, dtype)
        self._counted.num_bytes += made.nbytes
        return made


class Owner:
    """Whose buffers they are: once it is gone, so are they."""

    __slots__ = ("__weakref__",)


class BufferShelf:
    """Buffers between two rounds, of the owners that used theirs last. Safe to share between threads.

    Args:
        capacity_bytes: What they may take together. Past it those go whose owners waited longest; a set that
            is larger by itself is not kept.
    """

    def __init__(self, capacity_bytes: int = SHELF_BYTES) -> None:
        self._capacity = capacity_bytes
        self._lock = Lock()
        self._kept: WeakKeyDictionary[Owner, list[Buffers]] = WeakKeyDictionary()

    @contextmanager
    def lent(self, owner: Owner) -> Iterator[Buffers]:
        """Lend a set of an owner's buffers, kept or new, exclusively for a `with` block."""
        with self._lock:
            kept = self._kept.get(owner)
            buffers = kept.pop() if kept else Buffers()
        try:
            yield buffers
        finally:
            with self._lock:
                self._put(owner, buffers)

    @property
    def num_bytes(self) -> int:
        """The bytes kept at the moment."""
        with self._lock:
            return self._num_bytes()

    def _put(self, owner: Owner, buffers: Buffers) -> None:
        """Keep a set, with the lock held, as the most recently used one."""
        if buffers.num_bytes > self._capacity:
            return
        self._kept[owner] = [*self._kept.pop(owner, ()), buffers]  # a dictionary's last key is its newest
        while self._num_bytes() > self._capacity:
            oldest = next(iter(self._kept))
            self._kept[oldest] = self._kept[oldest][1:]
            if not self._kept[oldest]:
                del self._kept[oldest]

    def _num_bytes(self) -> int:
        """Return the total size, with the lock held."""
        return sum(one.num_bytes for sets in self._kept.values() for one in sets)

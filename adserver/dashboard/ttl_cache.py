"""Answers that are kept for a moment, so that ten open pages cost what one does."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

from maskedlark.errors import HelperUnavailable

_MOST: Final = 256
_RETRY_AFTER_S: Final = 2.0
_T = TypeVar("_T")


@dataclass(slots=True)
class _Entry(Generic[_T]):
    """What is kept under a key: the last value, which is there, and the one that is being made."""

    made_at: float = float("-inf")
    stamp: Hashable = None
    last: "Future[_T] | None" = None
    making: "Future[_T] | None" = None


class TtlCache(Generic[_T]):
    """Values under keys, each made anew when it is too old. Safe to share between threads."""

    def __init__(
        self,
        *,
        lasts_s: float,
        threads: int,
        most_making: int = _MOST,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep values for `lasts_s` seconds, and make them in so many threads.

        While `most_making` values are made or wait for a thread, no other is started: a caller that
        chooses keys cannot pile up work.
        """
        self._lasts_s = lasts_s
        self._elapsed = elapsed
        self._lock = Lock()
        self._made_so_far = self._making = 0
        self._most_making = most_making
        self._entries: OrderedDict[Hashable, _Entry[_T]] = OrderedDict()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dashboard")

    @property
    def made_so_far(self) -> int:
        """The number of values made."""
        return self._made_so_far

    def refresh(self, key: Hashable, make: Callable[[], _T], stamp: Hashable = None) -> "Future[_T]":
        """Return the value if it is fresh or was made from the same stamp; else start making the next one.

        It is done in the first case. It fails with what `make` raises; the next call tries again.

        Raises:
            HelperUnavailable: too many values are being made.
        """
        with self._lock:
            entry = self._entry(key)
            if entry.making is None and self._making >= self._most_making and self._is_old(entry, stamp):
                raise HelperUnavailable(
                    "the ad server is busy with other pages: retry in a few seconds",
                    retry_after_s=_RETRY_AFTER_S,
                )
            return self._renew(entry, make, stamp)

    def soon(
        self, key: Hashable, make: Callable[[], _T], *, wait_s: float, stamp: Hashable = None
    ) -> _T | None:
        """Return a fresh value, or after a short wait the latest one, however old; None if there is none.

        A value that is too old is made anew, unless it was made of the same stamp, or too many are being
        made: then a later call starts it.
        """
        with self._lock:
            entry = self._entry(key)
            last = entry.last
            if entry.making is not None or self._making < self._most_making:
                newest: Future[_T] | None = self._renew(entry, make, stamp)
            else:
                newest = last
        if newest is None:
            return None
        try:
            return newest.result(timeout=wait_s)
        except NotInTime:
            return None if last is None else last.result()

    def close(self) -> None:
        """Make nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _entry(self, key: Hashable) -> _Entry[_T]:
        """Return the entry of a key, evicting the least recently used one when the cache is full."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        # Keys come from requests: without a bound anybody who may read could fill the memory
        while len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        return entry

    def _renew(self, entry: _Entry[_T], make: Callable[[], _T], stamp: Hashable) -> "Future[_T]":
        """Return the value if it need not be made anew, else the one that is being made; under the lock."""
        if entry.last is not None and not self._is_old(entry, stamp):
            return entry.last
        # One at a time for a key: all who wait get the same value
        if entry.making is None:
            entry.making = self._pool.submit(self._made, entry, make, stamp)
            self._making += 1
        return entry.making

    def _is_old(self, entry: _Entry[_T], stamp: Hashable) -> bool:
        """Return whether there is no value, or one that is too old and of another stamp."""
        is_young = self._elapsed() - entry.made_at < self._lasts_s
        return entry.last is None or not (is_young or (stamp is not None and stamp == entry.stamp))

    def _made(self, entry: _Entry[_T], make: Callable[[], _T], stamp: Hashable) -> _T:
        try:
            value = make()
        # Whatever it was, else the entry would wait for it for ever
        except BaseException:
            with self._lock:
                entry.making = None
                self._making -= 1
            raise
        # A future that is done, so that callers treat a value that is kept as one that is made
        there: Future[_T] = Future()
        there.set_result(value)
        with self._lock:
            entry.last, entry.stamp = there, stamp
            entry.made_at, entry.making = self._elapsed(), None
            self._making -= 1
            self._made_so_far += 1
        return value

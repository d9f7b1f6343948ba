"""Prepared shares, which a helper keeps in memory until they are committed, within bounds."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from threading import Lock
from typing import Final, Protocol, TypeVar

from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import OpenedDataset

MAX_PREPARED_PER_TASK: Final = 2
MAX_PREPARED: Final = 64
OF_ONE_OWNER: Final = Fraction(3, 4)
"""The most of the room that one ad server's tasks get: something is left for the others."""
KEPT_S: Final = 600.0
"""How long a finished preparation keeps its room, whoever else needs it.

Its commit follows within this time or is not to come.
"""
RETRY_AFTER_S: Final = 5.0


@frozen
class Handle:
    """The name that an ad server gave to a preparation within its task.

    Its owner is the host that certificates name it by.
    """

    owner: str
    task_id: bytes
    name: bytes


class _Discardable(Protocol):
    """What a preparation leaves elsewhere, too."""

    def discard(self) -> None:
        """Give up what the preparation stored, once it is forgotten; takes no time and cannot fail."""


_Prepared = TypeVar("_Prepared", bound=_Discardable)


@frozen
class _Kept:
    """A finished preparation, the room that it takes, and when it was finished."""

    prepared: _Discardable
    num_bytes: int
    since: float


class PreparationCache:
    """Preparations by handle, of reports and of updates, and the room that all share, finished or not.

    Past the bounds on their number the oldest of the caller with the most are evicted: nothing was used up,
    they can be prepared again. A caller that exceeds its quota receives a retry delay: it does not push out
    what another one is about to commit.
    """

    def __init__(self, capacity_bytes: int, clock: Callable[[], float]) -> None:
        self.capacity_bytes = capacity_bytes
        self._of_one = int(capacity_bytes * OF_ONE_OWNER)
        self._clock = clock
        self._lock = Lock()
        self._prepared: OrderedDict[Handle, _Kept] = OrderedDict()
        self._taken: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        """The bytes taken."""
        with self._lock:
            return self._taken.total()

    def take(self, num_bytes: int, *, held: int, owner: str) -> None:
        """Take room for a preparation that goes on, before it is filled.

        Args:
            num_bytes: How much more.
            held: What the same preparation took before.
            owner: One ad server.

        Raises:
            JobRefused(DATASET_TOO_LARGE): it needs more than there is for one ad server, so it will never
            fit.
            HelperUnavailable: others take what it needs; it says when to ask again.
        """
        # No retry delay here: alone, too, it would not fit.
        if held + num_bytes > self._of_one:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"this helper has room for {self._of_one} bytes of an ad server's preparations, "
                f"{float(OF_ONE_OWNER):g} of"
                " --max-preparing-bytes: seal several smaller datasets",
            )
        with self._lock:
            while not self._has_room(num_bytes, owner):
                # Only what is overdue goes: the commit of the others is still to come.
                if self._forget_older(KEPT_S, partial(self._would_help, num_bytes, owner)):
                    continue
                raise HelperUnavailable(
                    "this helper's memory for preparing datasets is full (--max-preparing-bytes); retry in "
                    f"{RETRY_AFTER_S:g} s",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._taken[owner] += num_bytes

    def give_back(self, num_bytes: int, owner: str) -> None:
        """Free the room of a preparation that was not finished."""
        with self._lock:
            self._free(num_bytes, owner)

    def put(self, handle: Handle, prepared: _Discardable, num_bytes: int) -> None:
        """Keep a finished preparation with the room that was taken for it.

        An earlier one of the same handle is replaced.
        """
        with self._lock:
            self._forget(handle)
            self._prepared[handle] = _Kept(prepared=prepared, num_bytes=num_bytes, since=self._clock())
            # In the order in which they were finished: the oldest go first.
            of_task = [known for known in self._prepared if known.task_id == handle.task_id]
            for known in of_task[:-MAX_PREPARED_PER_TASK]:
                self._forget(known)
            while len(self._prepared) > MAX_PREPARED:
                ((most, _),) = Counter(known.owner for known in self._prepared).most_common(1)
                self._forget(next(known for known in self._prepared if known.owner == most))

    @contextmanager
    def lent(self, handle: Handle, kind: type[_Prepared]) -> Iterator[_Prepared | None]:
        """Yield the preparation of a handle, if one of this kind is kept; nothing evicts it meanwhile.

        At its end it is kept again, unless a newer one of the handle is.
        """
        with self._lock:
            kept = self._prepared.pop(handle, None)
        try:
            yield kept.prepared if kept is not None and isinstance(kept.prepared, kind) else None
        finally:
            with self._lock:
                if kept is not None and self._prepared.setdefault(handle, kept) is not kept:
                    self._end(kept, handle.owner)

    def drop(self, handle: Handle) -> None:
        """Forget one preparation, and free its memory."""
        with self._lock:
            self._forget(handle)

    def forget_overdue(self, owner: str) -> bool:
        """Forget an ad server's oldest preparation that waited for its commit longer than `KEPT_S`.

        Called when its quota has no room; returns whether there was one.
        """
        with self._lock:
            return self._forget_older(KEPT_S, lambda handle: handle.owner == owner)

    def forget_abandoned(self, age_s: float) -> None:
        """Forget every preparation that was finished so long ago."""
        with self._lock:
            while self._forget_older(age_s, lambda _: True):
                pass

    def _has_room(self, num_bytes: int, owner: str) -> bool:
        """Return, with the lock held, whether so much more fits, in total and for one owner."""
        return (
            self._taken.total() + num_bytes <= self.capacity_bytes
            and self._taken[owner] + num_bytes <= self._of_one
        )

    def _forget(self, handle: Handle) -> None:
        """Forget a preparation, with the lock held."""
        kept = self._prepared.pop(handle, None)
        if kept is not None:
            self._end(kept, handle.owner)

    def _end(self, kept: _Kept, owner: str) -> None:
        """Free a preparation's memory, with the lock held; what it stored is deleted soon."""
        self._free(kept.num_bytes, owner)
        kept.prepared.discard()

    def _free(self, num_bytes: int, owner: str) -> None:
        """Free so many bytes, with the lock held."""
        self._taken[owner] -= num_bytes
        if not self._taken[owner]:
            del self._taken[owner]

    def _would_help(self, num_bytes: int, owner: str, handle: Handle) -> bool:
        """Return, with the lock held, whether an ad server gains room by forgetting a preparation."""
        return self._taken.total() + num_bytes > self.capacity_bytes or handle.owner == owner

    def _forget_older(self, age_s: float, is_meant: Callable[[Handle], bool]) -> bool:
        """Forget, with the lock held, the oldest matching preparation of this age, if any."""
        for handle, kept in self._prepared.items():
            if self._clock() - kept.since >= age_s and is_meant(handle):
                self._forget(handle)
                return True
        return False


def opened_bytes(dataset: OpenedDataset) -> int:
    """Return the memory that an opened dataset takes."""
    shares = dataset.shares
    measured = shares.measured.keys.nbytes + shares.measured.value_shares.nbytes if shares.measured else 0
    return (
        dataset.report_ids.nbytes
        + shares.features.nbytes
        + shares.labels.nbytes
        + shares.mask_shares.nbytes
        + measured
    )

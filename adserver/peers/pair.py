"""Both helpers, asked the same thing at the same time: once, or for the length of a job.

A helper of a job that is down is asked again until it answers.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import field
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from adserver.peers.retrying import Backoff, with_retries
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.frozen import frozen

if TYPE_CHECKING:
    from maskedlark.releases.job import JobSpec
    from maskedlark.releases.release import AggregateShare
    from maskedlark.releases.started_job import StartedJob

_T = TypeVar("_T")
# How late an interruption is noticed: one cannot wait for futures and an event together
_POLL_S: Final = 0.1
ROLES: Final = (0, 1)


class JobHelper(Protocol):
    """What a job needs of a helper; `adserver.peers.client.HelperClient` is one."""

    def start_job(self, job: "JobSpec", model: bytes) -> "StartedJob":
        """Have the helper check the job and reserve its budget."""

    def run_round(
        self,
        job: "JobSpec",
        round_index: int,
        weights: bytes,
        num_parameters: int,
        *,
        cancelled: Event | None = None,
    ) -> "AggregateShare":
        """Run a round at the helper; return early when `cancelled` is set."""

    def close_job(self, job: "JobSpec") -> int:
        """Tell the helper that no more rounds will come, also of a job it has not seen.

        How many it answered, and charged.
        """


class _Watcher(Protocol):
    """The callback that learns that a job has to wait."""

    def helper_down(self, error: HelperUnavailable) -> None:
        """Record that a helper did not answer; it will be asked again."""

    def helpers_back(self) -> None:
        """Record that no helper is missing any more."""


def at_both(
    call: Callable[[int], _T],
    cancelled: Event,
    *,
    grace_s: float = 0.0,
    ended: Callable[[Sequence[BaseException | None]], None] = lambda _: None,
) -> tuple[_T, _T]:
    """Run a call for both roles at the same time, each to its end; the first that fails is raised.

    Args:
        call: Given a role.
        cancelled: Set as soon as one fails, or a person interrupts the wait.
        grace_s: How long the other call may still take before that.
        ended: Called before anything is raised with each call's end: its error, or None.
    """
    with ThreadPoolExecutor(len(ROLES), thread_name_prefix="helper") as pool:
        # each thread in a copy of this one's context, so that both calls belong to its trace
        calls = [pool.submit(copy_context().run, call, role) for role in ROLES]
        try:
            done, pending = wait(calls, return_when=FIRST_EXCEPTION)
            if grace_s:
                wait(pending, timeout=grace_s)
        finally:
            cancelled.set()
    ended([one.exception() for one in calls])
    for one in (*sorted(done, key=calls.index), *calls):  # what came first may have ended the other
        one.result()
    first, second = calls
    return first.result(), second.result()


@frozen
class HelperPair:
    """The two helpers, for the length of one job.

    The first refusal of either helper, or `interrupted` being set, ends the calls to both.
    """

    helpers: tuple[JobHelper, JobHelper]
    backoff: Backoff
    interrupted: Event
    watcher: _Watcher
    pool: ThreadPoolExecutor
    _down: set[int] = field(default_factory=set, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @classmethod
    @contextmanager
    def open(
        cls, helpers: tuple[JobHelper, JobHelper], backoff: Backoff, *, interrupted: Event, watcher: _Watcher
    ) -> Iterator["HelperPair"]:
        """Open a pair whose calls are abandoned, not awaited, at the end."""
        pool = ThreadPoolExecutor(max_workers=len(ROLES), thread_name_prefix="helper")
        pair = cls(helpers=helpers, backoff=backoff, interrupted=interrupted, watcher=watcher, pool=pool)
        try:
            yield pair
        finally:
            with pair._lock:  # no abandoned call tells the watcher of anything from here on
                interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def start_job(self, job: "JobSpec", model: bytes) -> "tuple[StartedJob, StartedJob]":
        """Start a job at both helpers. Raises as `ask` does."""
        return self.ask(lambda _, helper: helper.start_job(job, model))

    def run_round(
        self, job: "JobSpec", round_index: int, weights: bytes, num_parameters: int
    ) -> "tuple[AggregateShare, AggregateShare]":
        """Return both answers to one round. Raises as `ask` does."""
        return self.ask(
            lambda _, helper: helper.run_round(
                job, round_index, weights, num_parameters, cancelled=self.interrupted
            )
        )

    def ask(self, call: Callable[[int, Any], _T]) -> tuple[_T, _T]:
        """Return the answers of both helpers, by role, to a call that takes a role and its helper.

        Raises:
            HelperUnavailable: a helper stayed away for longer than the backoff allows.
            JobRefused(CANCELLED): interrupted.
            MaskedLarkError: what either helper refused with.
        """
        # each thread in a copy of this one's context, so that both calls belong to the trace of the job
        first, second = (
            self.pool.submit(copy_context().run, self._until_answered, role, partial(call, role))
            for role in ROLES
        )
        self._await(first, second)
        return first.result(), second.result()

    def _await(self, *futures: "Future[Any]") -> None:
        """Return when all have answered; raise what the first failure was, without waiting for the others."""
        pending = set(futures)
        while pending:
            if self.interrupted.is_set():
                raise JobRefused(JobReason.CANCELLED, "interrupted while the helpers computed")
            done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
            for error in filter(None, (future.exception() for future in done)):
                # The other helper's call looks at it too, and ends.
                self.interrupted.set()
                raise error

    def _until_answered(self, role: int, call: Callable[[Any], _T]) -> _T:
        answer = with_retries(partial(self._attempt, role, call), self.backoff, cancelled=self.interrupted)
        # Told under the lock, so that the watcher hears of helpers in the order in which they came and went
        with self._lock:
            was_down = bool(self._down)
            self._down.discard(role)
            if was_down and not self._down and not self.interrupted.is_set():
                self.watcher.helpers_back()
        return answer

    def _attempt(self, role: int, call: Callable[[Any], _T]) -> _T:
        try:
            return call(self.helpers[role])
        except HelperUnavailable as error:
            with self._lock:
                self._down.add(role)
                if not self.interrupted.is_set():
                    self.watcher.helper_down(error)
            raise

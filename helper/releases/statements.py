"""Statements about releases, made from the ledger when they are asked for: rounds take no longer for them."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from hashlib import sha256
from typing import Final, TypeAlias

import numpy as np

from helper.datasets.fair_cache import FairCache
from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, key_of
from helper.ledger.release_history import ChargedAnswers, ChargedRelease, ReleaseHistory
from helper.ledger.spending import Spending
from helper.releases.answering import Call
from helper.trust.tasks import Tasks
from maskedlark.canonical import encode
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.statement import ReleaseStatement, SignedStatement
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.rpc.trust import host_of
from maskedlark.runtime.keyed_lock import KeyedLock

_KEPT_BYTES: Final = 32 << 20
# Of one in memory, more than it takes.
_STATEMENT_BYTES: Final = 2_048

_Name: TypeAlias = tuple[ReleaseKey, int, bool]


@frozen
class Statements:
    """The statements of one helper.

    Attributes:
        tasks: What callers may ask about.
        ledger: What was charged.
        sign: Signs a statement with this helper's own key.
        verify_key: That key's public half.
    """

    tasks: Tasks
    ledger: Ledger
    sign: Callable[[ReleaseStatement], SignedStatement]
    verify_key: bytes
    _made: FairCache[_Name, SignedStatement] = field(
        default_factory=lambda: FairCache(_KEPT_BYTES), init=False
    )
    """What a statement says never changes, so a call that took too long goes on where it stopped."""
    _making: KeyedLock = field(default_factory=KeyedLock, init=False)
    """One ad server has one statement made at a time, in however many calls."""

    def of_task(self, task_id: bytes, call: Call) -> Iterator[SignedStatement]:
        """Yield a statement about each job and query of a task that was charged, by last answer.

        The ad server learns of its own task only, and nothing that it was not answered before.

        Args:
            task_id: The task.
            call: The waiting caller: each statement takes the accountant's time.

        Raises:
            JobRefused(UNKNOWN_TASK)
        """
        task = self.tasks.authorize(task_id, call.caller)
        history, host = ReleaseHistory(self.ledger.engine), host_of(task.origin)
        releases = [(one, self._made.get(_name(one))) for one in history.of_task(task_id)]
        missing = [release for release, made in releases if made is None]
        budgets: dict[bytes, _SpentUntil] = {}

        def make(release: ChargedRelease) -> SignedStatement:
            with self._making.hold(host.encode()):
                call.check_awaited()
                if (made := self._made.get(_name(release))) is not None:  # by another call meanwhile
                    return made
                budget = _budget_of(task, release)
                if budget not in budgets:
                    of_budget = [one for one in missing if _budget_of(task, one) == budget]
                    answers = history.answers(release.spec.dataset_id)
                    budgets[budget] = _SpentUntil(task, answers, of_budget)
                made = self.sign(self._state(task, release, history, budgets[budget], call))
                self._made.put(_name(release), made, num_bytes=_STATEMENT_BYTES, owner=host)
                return made

        for release, made in releases:
            yield made or make(release)

    def _state(
        self,
        task: Task,
        release: ChargedRelease,
        history: ReleaseHistory,
        spent: "_SpentUntil",
        call: Call,
    ) -> ReleaseStatement:
        spec, entry = release.spec, history.entry(release.last)
        before = spent.until(release.first - 1, call.check_awaited)
        after = spent.until(release.last, call.check_awaited)
        numerics = entry.subject.get("numerics")
        return ReleaseStatement(
            helper=self.verify_key,
            role=[one.verify_key for one in task.helpers].index(self.verify_key),
            task_id=spec.task_id,
            dataset_id=spec.dataset_id,
            kind=spec.kind,
            release_id=spec.release_id,
            spec=sha256(encode(spec)).digest(),
            answers=release.answers,
            answers_digest=history.answers_digest(release, call.check_awaited),
            is_final=release.is_final,
            mechanism=task.mechanism,
            noise=task.noise,
            noise_multiplier=float(spec.noise_multiplier),
            min_batch_size=task.min_batch_size,
            delta=task.delta,
            epsilon_before=_finite(before.ad_server),
            epsilon_after=_finite(after.ad_server),
            collusion_epsilon_before=_finite(before.colluding),
            collusion_epsilon_after=_finite(after.colluding),
            numerics=bytes.fromhex(numerics) if numerics else None,
            entry=entry.digest,
            at=entry.at,
        )


class _SpentUntil:
    """What a budget had spent before the first answer and after the last one of some releases.

    Found in one pass over its answers, as far as it is asked for.
    """

    def __init__(self, task: Task, answers: ChargedAnswers, releases: Iterable[ChargedRelease]) -> None:
        self._answers = answers
        # In the order of the log, so that each answer is charged once, whichever statements ask.
        self._ahead = deque(sorted({entry for one in releases for entry in (one.first - 1, one.last)}))
        self._spending = Spending(task)
        self._charged = 0
        self._latest = self._spending.cost()
        self._known: dict[int, Epsilons] = {}

    def until(self, entry: int, interrupt: Interrupt) -> Epsilons:
        """Return what was spent up to an entry of the audit log, itself included: of those named above."""
        while entry not in self._known:
            interrupt()
            self._advance(self._ahead[0])
            self._known[self._ahead.popleft()] = self._latest
        return self._known[entry]

    def _advance(self, entry: int) -> None:
        charged = int(np.searchsorted(self._answers.entries, entry, side="right"))
        if charged == self._charged:
            return  # mostly, what is spent after one release is what is spent before the next
        more = np.unique(self._answers.releases[self._charged : charged], return_counts=True)
        for release, answers in zip(*more, strict=True):
            self._spending.add(self._answers.specs[release], int(answers))
        self._charged, self._latest = charged, self._spending.cost()


def _name(release: ChargedRelease) -> _Name:
    return key_of(release.spec), release.last, release.is_final


def _budget_of(task: Task, release: ChargedRelease) -> bytes:
    """Return what names the budget that a release of a task was charged to."""
    return task.task_id if task.unit is PrivacyUnit.USER else release.spec.dataset_id


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None

"""Statements about releases, made from the ledger when they are asked for: rounds take no longer for them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import field
from hashlib import sha256
from typing import Final

from helper.datasets.fair_cache import FairCache
from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, Reservation, key_of
from helper.ledger.release_history import ChargedRelease, ReleaseHistory
from helper.ledger.spending import cost
from helper.releases.answering import Call
from helper.trust.tasks import Tasks
from maskedlark.canonical import encode
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.statement import ReleaseStatement, SignedStatement
from maskedlark.reports.task import Task
from maskedlark.rpc.trust import host_of

_KEPT_BYTES: Final = 32 << 20
_STATEMENT_BYTES: Final = 2_048
"""Of one in memory, more than it takes."""


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
    _made: FairCache[tuple[ReleaseKey, int, bool], SignedStatement] = field(
        default_factory=lambda: FairCache(_KEPT_BYTES), init=False
    )
    """What a statement says never changes, so a call that took too long goes on where it stopped."""

    def of_task(self, task_id: bytes, call: Call) -> Iterator[SignedStatement]:
        """Yield a statement about each job and query of a task that was charged, by first answer.

        The ad server is told of its own task only, and nothing that it was not answered before.

        Args:
            task_id: The task.
            call: The waiting caller: each statement takes the accountant's time.

        Raises:
            JobRefused(UNKNOWN_TASK)
        """
        task = self.tasks.authorize(task_id, call.caller)
        history = ReleaseHistory(self.ledger.engine)
        known: dict[tuple[Reservation, ...], Epsilons] = {}

        def spent_until(release: ChargedRelease, entry: int) -> Epsilons:
            charged = history.charged_until(release.spec.dataset_id, entry)
            if charged not in known:  # mostly, what is spent after one is what is spent before the next
                call.check_awaited()
                known[charged] = cost(task, charged)
            return known[charged]

        for release in history.of_task(task_id):
            name = (key_of(release.spec), release.last, release.is_final)
            made = self._made.get(name)
            if made is None:
                before = spent_until(release, release.first - 1)
                after = spent_until(release, release.last)
                made = self.sign(self._state(task, release, history, before, after))
                self._made.put(name, made, num_bytes=_STATEMENT_BYTES, owner=host_of(task.origin))
            yield made

    def _state(
        self,
        task: Task,
        release: ChargedRelease,
        history: ReleaseHistory,
        before: Epsilons,
        after: Epsilons,
    ) -> ReleaseStatement:
        spec, entry = release.spec, history.entry(release.last)
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
            answers_digest=history.answers_digest(release),
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


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None

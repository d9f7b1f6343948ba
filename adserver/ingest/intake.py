"""What both front doors do with a report: check it, store it once, count it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from threading import Lock
from typing import Final

from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import REFUSED_EVERY_S, TaskStore
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.reports.upload import Report, ReportCheck
from maskedlark.rpc.wire import report_from_message
from protos import report_pb2

_LOG = logging.getLogger(__name__)
# A commit takes about as long for many reports as for one; both bounds are for the memory of a transaction
_TRANSACTION_REPORTS: Final = 1_000
_TRANSACTION_BYTES: Final = 1 << 20
_LOG_EVERY_S: Final = 60.0


@frozen
class IntakeCounts:
    """What became of reports.

    Attributes:
        accepted: Stored now.
        duplicates: Stored before, byte for byte the same; left as they were.
        rejected: Not stored, by reason.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: Counter[ReportReason] = field(default_factory=Counter)

    def __add__(self, other: "IntakeCounts") -> "IntakeCounts":
        return IntakeCounts(
            accepted=self.accepted + other.accepted,
            duplicates=self.duplicates + other.duplicates,
            rejected=self.rejected + other.rejected,
        )

    def by_reason(self) -> dict[str, int]:
        """Return the rejections by their reasons' names, in alphabetical order."""
        return {reason.value: count for reason, count in sorted(self.rejected.items())}


class Intake:
    """Takes reports in. Safe to share between threads; keeps the counts since the server started."""

    def __init__(
        self,
        tasks: TaskStore,
        reports: ReportStore,
        monotonic: Callable[[], float],
        rounds: RoundStore | None = None,
    ) -> None:
        """Take reports of `tasks`; updates of federated rounds only if there are `rounds`."""
        self._tasks = tasks
        self._rounds = rounds
        self._reports = reports
        self._monotonic = monotonic
        self._lock = Lock()
        self._checks: dict[bytes, ReportCheck] = {}
        self._counts = IntakeCounts()
        self._logged_s = monotonic()
        self._refused = tasks.list_refused()
        self._refused_read_s = self._logged_s

    @property
    def counts(self) -> IntakeCounts:
        """The outcomes of all reports so far."""
        return self._counts

    def take(self, report: Report) -> bool:
        """Take one report: whether it is new.

        Guarantees: when this returns, the report is durable.

        Raises:
            ReportRejected: it is counted, and nothing of it is stored.
        """
        try:
            self._check(report)
            if report.round_id:
                return self._take_update(report)
        except ReportRejected as rejection:
            self.count_rejection(rejection)
            raise
        return bool(self._store([report]).accepted)

    def _take_update(self, report: Report) -> bool:
        """Store a checked update of a round, if the round is open."""
        if self._rounds is None:
            raise ReportRejected(ReportReason.UNKNOWN_ROUND, "this intake serves no federated rounds")
        is_new = self._rounds.add(report)
        self._count(IntakeCounts(accepted=int(is_new), duplicates=int(not is_new)))
        return is_new

    def take_all(self, messages: Iterable[report_pb2.Report]) -> IntakeCounts:
        """Take many reports, stored in transactions of up to 1,000.

        A report that is wrong does not hold up the others.

        Guarantees: when this returns, every report is accounted for and what is not rejected is durable.
            Holds one transaction's reports in memory. If `messages` raises, what came before is stored or
            will be accepted again as new.
        """
        total, waiting, waiting_bytes = IntakeCounts(), list[Report](), 0
        for message in messages:
            try:
                report = report_from_message(message)
                self._check(report)
                if report.round_id:
                    is_new = self._take_update(report)
                    total += IntakeCounts(accepted=int(is_new), duplicates=int(not is_new))
                    continue
            except ReportRejected as rejection:
                total += self.count_rejection(rejection)
                continue
            waiting.append(report)
            waiting_bytes += sum(len(share.ciphertext) for share in report.shares)
            if len(waiting) >= _TRANSACTION_REPORTS or waiting_bytes >= _TRANSACTION_BYTES:
                total += self._store_if_open(waiting)
                waiting, waiting_bytes = [], 0
        return total + self._store_if_open(waiting)

    def count_rejection(self, rejection: ReportRejected) -> IntakeCounts:
        """Count a report that was rejected before it could be taken."""
        return self._count(IntakeCounts(rejected=Counter({rejection.reason: 1})))

    def log_counts(self) -> None:
        """Write the counts to the log."""
        counts = self._counts
        _LOG.info(
            "reports: %d accepted, %d duplicates, rejected: %s",
            counts.accepted,
            counts.duplicates,
            counts.by_reason() or "none",
        )

    def _check(self, report: Report) -> None:
        task = self._tasks.task(report.task_id)
        if task is None:
            raise ReportRejected(ReportReason.WRONG_TASK, "this ad server has no such task")
        if report.task_id in self._refusing_tasks():
            raise ReportRejected(ReportReason.OUTSIDE_TASK_PERIOD, "the task ended days ago")
        check = self._checks.get(report.task_id)
        if check is None:
            # One for each task that exists: callers cannot make up tasks, so this does not grow by them
            check = self._checks[report.task_id] = ReportCheck(task)
        check.check(report)

    def _refusing_tasks(self) -> frozenset[bytes]:
        """Return the tasks whose reports are refused, at most `REFUSED_EVERY_S` out of date."""
        now_s = self._monotonic()
        if now_s - self._refused_read_s >= REFUSED_EVERY_S:
            self._refused, self._refused_read_s = self._tasks.list_refused(), now_s
        return self._refused

    def _store_if_open(self, checked: list[Report]) -> IntakeCounts:
        """Store what was checked a while ago, for a stream may be slow; not what is refused since."""
        refused = self._refusing_tasks()
        still_open = [report for report in checked if report.task_id not in refused]
        counts = self._store(still_open)
        if late := len(checked) - len(still_open):
            counts += self._count(IntakeCounts(rejected=Counter({ReportReason.OUTSIDE_TASK_PERIOD: late})))
        return counts

    def _store(self, checked: list[Report]) -> IntakeCounts:
        accepted = self._reports.add(checked)
        return self._count(IntakeCounts(accepted=accepted, duplicates=len(checked) - accepted))

    def _count(self, counts: IntakeCounts) -> IntakeCounts:
        with self._lock:
            self._counts += counts
            is_time_to_log = self._monotonic() - self._logged_s >= _LOG_EVERY_S
            if is_time_to_log:
                self._logged_s = self._monotonic()
        # Outside the lock, so that a slow log holds up no report
        if is_time_to_log:
            self.log_counts()
        return counts

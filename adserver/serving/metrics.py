"""What the ad server tells its operator in numbers, read from the store at each scrape."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import Engine

from adserver.records.job_record import JobRecord
from adserver.records.job_state import STOPPED, JobState
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.store.database import Clock
from adserver.store.jobs import JobStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason

_ID_DIGITS: Final = 12
# A cancelled job keeps the reason for which it had stopped before
_STOPPED_FOR_A_REASON: Final = STOPPED - {JobState.CANCELLED}


class AdserverMetrics(IntakeMetrics):
    """The ad server's numbers: its intake's, and the store's."""

    def __init__(self, engine: Engine, clock: Clock = time.time) -> None:
        """Measure one store; `clock` returns Unix seconds."""
        self._clock = clock
        self._jobs = JobStore(engine, clock)
        self._tasks = TaskStore(engine)
        self._reports = ReportStore(engine)
        super().__init__()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. Called at each scrape."""
        yield from super().collect()
        yield from self._of_jobs(self._jobs.all())
        yield from self._of_tasks()

    def _of_jobs(self, jobs: tuple[JobRecord, ...]) -> Iterable[Metric]:
        states = GaugeMetricFamily("adserver_jobs", "Jobs, by state.", labels=("state",))
        for state in JobState:
            states.add_metric((state.value,), sum(job.state is state for job in jobs))
        yield states
        reasons = Counter(
            job.stop.reason for job in jobs if job.stop is not None and job.state in _STOPPED_FOR_A_REASON
        )
        stopped = GaugeMetricFamily(
            "adserver_jobs_stopped",
            "Jobs that were refused, failed or spent their budget.",
            labels=("reason",),
        )
        for reason in JobReason:
            stopped.add_metric((reason.value,), reasons.pop(reason.value, 0))
        for other, count in sorted(reasons.items()):
            stopped.add_metric((other,), count)
        yield stopped
        queued = [self._clock() - job.submitted_at_s for job in jobs if job.state is JobState.QUEUED]
        age = (
            "How long ago the oldest queued job was submitted. For one that ran and was queued again, that"
            " includes its time at work."
        )
        yield GaugeMetricFamily("adserver_queue_age_seconds", age, max([0.0, *queued]))
        yield CounterMetricFamily(
            "adserver_rounds",
            "Rounds whose step was taken, of all jobs.",
            sum(job.rounds_done for job in jobs),
        )

    def _of_tasks(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily(
            "adserver_reports_waiting", "Stored reports that no dataset took yet.", labels=("task",)
        )
        fill = GaugeMetricFamily(
            "adserver_batch_fill", "The same, over the task's min_batch_size.", labels=("task",)
        )
        expired = GaugeMetricFamily(
            "adserver_reports_expired",
            "Reports that no dataset took before their task was over.",
            labels=("task",),
        )
        for stored in self._tasks.all():
            name = stored.task_id.hex()[:_ID_DIGITS]
            counts = self._reports.counts(stored.task_id)
            waiting.add_metric((name,), counts.waiting)
            fill.add_metric((name,), counts.waiting / stored.bundle.task.min_batch_size)
            expired.add_metric((name,), counts.expired)
        yield from (waiting, fill, expired)

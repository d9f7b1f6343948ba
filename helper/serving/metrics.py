"""A helper's metrics, for its operator.

They contain nothing that the ad server does not receive anyway.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from helper.core import HelperCore
from maskedlark.errors import ReportReason

ADMITTED: Final = "admitted"
_ID_DIGITS: Final = 12


class HelperMetrics(Collector):
    """The helper's metrics, on a separate registry. Safe to share between threads."""

    def __init__(self, core: HelperCore) -> None:
        """Count from zero; what the helper holds is asked for at each scrape."""
        self.registry: Final = CollectorRegistry()
        self._core = core
        self._opens = Counter(
            "helper_shares_opened",
            "Report shares opened, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in (ADMITTED, *ReportReason):  # a rate of a series that begins at one is none
            self._opens.labels(str(outcome))
        self.registry.register(self)

    def count_opens(self, admitted: int, dropped: Tally[ReportReason]) -> None:
        """Count the shares of a finished preparation."""
        self._opens.labels(ADMITTED).inc(admitted)
        for reason, count in dropped.items():
            self._opens.labels(reason.value).inc(count)

    def collect(self) -> Iterable[Metric]:
        """Return what the helper holds. Called at each scrape."""
        counts = self._core.counts()
        yield GaugeMetricFamily("helper_tasks", "Tasks that this helper signed.", counts.tasks)
        yield GaugeMetricFamily("helper_datasets", "Committed datasets.", counts.datasets)
        yield GaugeMetricFamily("helper_open_jobs", "Jobs that may request rounds.", counts.open_jobs)
        yield CounterMetricFamily(
            "helper_rounds_answered", "Rounds answered, and so charged, ever.", counts.rounds_answered
        )
        yield GaugeMetricFamily(
            "helper_preparing_bytes",
            "Bytes that preparations use, of --max-preparing-bytes.",
            self._core.datasets.preparing_bytes,
        )
        yield GaugeMetricFamily(
            "helper_max_preparing_bytes",
            "The option --max-preparing-bytes.",
            self._core.datasets.max_preparing_bytes,
        )
        yield GaugeMetricFamily(
            "helper_held_bytes",
            "Bytes that datasets and preparations of all ad servers use on the disk and in the bucket.",
            self._core.quota.num_bytes,
        )
        left = GaugeMetricFamily(
            "helper_budget_left",
            "Epsilon left of a dataset that a job or query ran over.",
            labels=("dataset",),
        )
        for one in self._core.budgets_left.current():
            left.add_metric((one.dataset_id.hex()[:_ID_DIGITS],), one.epsilon)
        yield left

"""What an intake tells its operator in numbers: what came in, and how it was answered."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from adserver.ingest.intake import IntakeCounts


class IntakeMetrics(Collector):
    """One process's numbers on a registry of their own; an intake replica has no others."""

    def __init__(self) -> None:
        """Start without an intake; `watch_intake` names it."""
        self.registry: Final = CollectorRegistry()
        self._intake: Callable[[], IntakeCounts] = IntakeCounts
        self._http = CounterMetric(
            "adserver_http_responses", "Answers over HTTP, by status.", ("status",), registry=self.registry
        )
        self.registry.register(self)

    def watch_intake(self, counts: Callable[[], IntakeCounts]) -> None:
        """Show what became of the reports that this process took in."""
        self._intake = counts

    def intake(self) -> IntakeCounts:
        """Return what became of the reports that this process received."""
        return self._intake()

    def count_http(self, status: int) -> None:
        """Count one answer over HTTP."""
        self._http.labels(str(status)).inc()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. Called at each scrape."""
        counts = self._intake()
        taken = CounterMetricFamily(
            "adserver_reports", "Reports that came in, by what became of them.", labels=("outcome",)
        )
        taken.add_metric(("accepted",), counts.accepted)
        taken.add_metric(("duplicate",), counts.duplicates)
        for reason, count in counts.by_reason().items():
            taken.add_metric((reason,), count)
        yield taken

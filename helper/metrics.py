"""What a helper tells its own operator in numbers; nothing here says more than the ad server is told anyway."""

from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from helper.ledger import Counts
from maskedlark.errors import ReportReason

ADMITTED: Final = "admitted"
_MAX_DATASETS: Final = 200
_ID_DIGITS: Final = 12


class HelperMetrics(Collector):
    """The helper's numbers on a registry of their own. Safe to share between threads."""

    def __init__(self, counts: Callable[[], Counts]) -> None:
        """Count from zero; `counts` asks the ledger, at each scrape."""
        self.registry: Final = CollectorRegistry()
        self._counts = counts
        self._opens = Counter("helper_shares_opened", "Report shares opened, by what became of them.", ("outcome",), registry=self.registry)
        self._left = Gauge("helper_budget_left", "Epsilon left of a dataset that a job ran over.", ("dataset",), registry=self.registry)
        self._datasets: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()
        self.registry.register(self)

    def count_opens(self, admitted: int, dropped: Tally[ReportReason]) -> None:
        """A preparation is over."""
        self._opens.labels(ADMITTED).inc(admitted)
        for reason, count in dropped.items():
            self._opens.labels(reason.value).inc(count)

    def show_budget(self, dataset_id: bytes, epsilon_left: float) -> None:
        """A job took its part of a dataset's budget; those of the latest 200 datasets are shown."""
        name = dataset_id.hex()[:_ID_DIGITS]
        with self._lock:
            self._datasets[name] = None
            self._datasets.move_to_end(name)
            self._left.labels(name).set(max(0.0, epsilon_left))
            if len(self._datasets) > _MAX_DATASETS:
                self._left.remove(self._datasets.popitem(last=False)[0])

    def collect(self) -> Iterable[Metric]:
        """What the ledger holds. Called at each scrape."""
        counts = self._counts()
        yield GaugeMetricFamily("helper_tasks", "Tasks that this helper signed.", counts.tasks)
        yield GaugeMetricFamily("helper_datasets", "Committed datasets.", counts.datasets)
        yield GaugeMetricFamily("helper_open_jobs", "Jobs that may ask for rounds.", counts.open_jobs)
        yield CounterMetricFamily("helper_rounds_answered", "Rounds answered, and so charged, ever.", counts.rounds_answered)

"""Sends metrics to an OpenTelemetry collector, for operators whose collector receives and does not scrape.

Calls are sent under the names of the semantic conventions (`rpc.server.call.duration`,
`rpc.client.call.duration`), everything else under the names that /metrics has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics
from prometheus_client import CollectorRegistry, Metric

from maskedlark.errors import InvalidSetting

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

_SCOPE: Final = "maskedlark"
# All instruments of one export read the same scrape
_FRESH_S: Final = 1.0


@contextmanager
def sending_metrics(service: str, registry: CollectorRegistry) -> Iterator[None]:
    """Send a registry's metrics to a collector while the block runs. Entered once, by a process that serves.

    OTEL_EXPORTER_OTLP_* and OTEL_METRIC_EXPORT_INTERVAL say where to and how often.

    Raises:
        InvalidSetting: the package of the extra `traces` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise InvalidSetting(
            "metrics to a collector need a package: pip install 'masked-lark[traces]'"
        ) from None
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    with _reading(service, registry, PeriodicExportingMetricReader(OTLPMetricExporter())):
        yield


@contextmanager
def _reading(service: str, registry: CollectorRegistry, reader: "MetricReader") -> Iterator[None]:
    """Let a reader read the registry's metrics and the durations of calls while the block runs."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    provider = MeterProvider([reader], Resource({"service.name": service}))
    _observe(provider.get_meter(_SCOPE), registry)
    metrics.set_meter_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _observe(meter: metrics.Meter, registry: CollectorRegistry) -> None:
    """Create an instrument for each counter and gauge; calls have histograms of their own."""
    scrapes = _Scrapes(registry)
    for family in scrapes.current().values():
        # Instruments are made once, of the families that exist by now: one that registers later is not sent.
        create: Callable[..., object]
        match family.type:
            case "counter":
                create = meter.create_observable_counter
            case "gauge":
                create = meter.create_observable_gauge
            case _:
                continue
        create(family.name, [scrapes.reader_of(family)], description=family.documentation)


class _Scrapes:
    """The registry's newest families, collected once for all instruments. Safe to share between threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = Lock()
        self._families: Mapping[str, Metric] = {}
        self._until = 0.0

    def current(self) -> Mapping[str, Metric]:
        with self._lock:
            if monotonic() >= self._until:
                self._families = {family.name: family for family in self._registry.collect()}
                self._until = monotonic() + _FRESH_S
            return self._families

    def reader_of(self, family: Metric) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        """Return what reads one family at each export."""
        # A counter's family is named without the end of its sample, which has a `_created` beside it.
        name, sample_name = family.name, f"{family.name}_total" if family.type == "counter" else family.name

        def read(_options: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
            for sample in self.current()[name].samples:
                if sample.name == sample_name:
                    yield metrics.Observation(sample.value, dict(sample.labels))

        return read

from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from maskedlark.errors import InvalidTask
from maskedlark.observability.endpoint import OperatorEndpoint, Starting
from tests.patience import HANGS_S


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}", timeout=HANGS_S) as answer:  # our own server
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_are_served() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    with OperatorEndpoint("127.0.0.1:0", registry, lambda: None) as endpoint:
        assert "things_total 3.0" in fetch(endpoint.address, "/metrics")[1]
        assert fetch(endpoint.address, "/healthz") == (200, "well\n")
        assert fetch(endpoint.address, "/elsewhere")[0] == 404


def test_a_service_that_is_not_well_says_so_and_not_why(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise RuntimeError("a detail")

    with OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), check) as endpoint:
        assert fetch(endpoint.address, "/healthz") == (503, "not well\n")
    assert "a detail" in caplog.text


def test_a_service_that_is_starting_says_so_and_logs_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise Starting

    with OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), check) as endpoint:
        assert fetch(endpoint.address, "/healthz") == (503, "starting\n")
    assert not caplog.records


def test_metrics_that_cannot_be_had_are_a_failed_scrape_and_the_next_one_is_answered(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    registry, failures = CollectorRegistry(), list[RuntimeError]()

    class Held(Collector):
        def collect(self) -> Iterator[Metric]:
            if failures:
                raise failures.pop()
            yield GaugeMetricFamily("held", "Things.", 3)

    registry.register(Held())
    failures.append(RuntimeError("the database is away"))
    with OperatorEndpoint("127.0.0.1:0", registry, lambda: None) as endpoint:
        assert fetch(endpoint.address, "/metrics") == (503, "not well\n")
        assert "held 3.0" in fetch(endpoint.address, "/metrics")[1]
    assert "the database is away" in caplog.text
    assert (
        "Exception occurred during processing of request" not in capfd.readouterr().err
    )  # as the HTTP server says of what it meets


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "192.0.2.1:0", ":0", "localhost", "127.0.0.1:what", "127.0.0.1:99999"]
)  # refused
def test_it_listens_on_loopback_only(address: str) -> None:
    with pytest.raises(InvalidTask):
        OperatorEndpoint(address, CollectorRegistry(), lambda: None)

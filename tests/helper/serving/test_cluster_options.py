from ipaddress import IPv4Address
from pathlib import Path

import pytest

from helper.cli.serve import _cluster_of
from helper.serving.cluster import WORKER_BYTES, RayCluster, check_machine
from maskedlark.errors import InvalidTask

SAFE = {"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "1"}


def test_a_helper_has_no_cluster_unless_it_is_told() -> None:
    assert _cluster_of(None, None, WORKER_BYTES) is None
    assert _cluster_of(None, Path("workers"), WORKER_BYTES) is None


def test_a_cluster_needs_certificates_for_workers() -> None:
    with pytest.raises(InvalidTask, match="--ray-worker-tls"):
        _cluster_of("127.0.0.1:6379", None, WORKER_BYTES)


@pytest.mark.parametrize("lacking", SAFE)
def test_a_cluster_beyond_this_machine_needs_authentication_and_tls(lacking: str) -> None:
    cluster = RayCluster(address="10.0.0.5:6379", worker_tls=Path("workers"))
    cluster.check(SAFE)
    with pytest.raises(InvalidTask, match=lacking):
        cluster.check({name: value for name, value in SAFE.items() if name != lacking})


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:10001"])
def test_an_address_that_does_not_say_loopback_is_taken_for_another_machines(address: str) -> None:
    with pytest.raises(InvalidTask, match="not on loopback"):
        RayCluster(address=address, worker_tls=Path("workers")).check({})


def test_a_cluster_on_loopback_needs_neither() -> None:
    RayCluster(address="127.0.0.1:6379", worker_tls=Path("workers")).check({})


@pytest.mark.parametrize(
    "host",
    ["192.0.2.2", "10.0.0.5", "2001:db8::1", "head", "", str(IPv4Address(0))],
)
def test_a_machine_that_others_reach_needs_authentication_and_tls_whatever_was_told(host: str) -> None:
    check_machine(host, SAFE)
    with pytest.raises(InvalidTask, match="not on loopback"):
        check_machine(host, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_machine_on_loopback_needs_neither(host: str) -> None:
    check_machine(host, {})

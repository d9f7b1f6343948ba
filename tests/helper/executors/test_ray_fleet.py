"""Workers on Ray: a head without processors, and raylets of this machine that come and go."""

import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from helper.datasets import segments, updates
from helper.executors.clustered import ClusterExecutor
from helper.executors.fleet import JoinRefused, WorkerLost
from helper.executors.processes import MIN_CHUNK
from helper.trust.cluster_secrets import WORKERS, worker_tls
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.interrupt import never
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.runtime.periodic import Periodic
from tests.builders import examples, reports, shares_for, world
from tests.helper.executors.clustered_site import Site, sampled
from tests.helper.executors.served_workers import certified
from tests.helper.executors.test_adding import Site as UpdateSite

pytest.importorskip("ray", reason="needs the extra `ray`: make setup-cluster")

from tests.helper.executors.ray_machines import (  # needs ray
    LOOPBACK,
    Machines,
    machines,
    raylet_pid,
    until,
)

pytestmark = pytest.mark.long
NODE = "5a" * 28
"""What Ray would call a machine."""


@pytest.fixture(scope="module")
def ray_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("ray")) as made:
        made.add()
        yield made


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    made = Site(tmp_path)
    yield made
    made.local.close()


def test_workers_on_ray_sum_as_this_machine_does_while_they_come_are_killed_and_go(
    ray_machines: Machines, site: Site
) -> None:
    with ray_machines.fleet(1) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local)
        site.assert_equal()
        ray_machines.add()
        ray_machines.await_workers(fleet, 2)
        site.assert_equal(seed=4)
        for pid in ray_machines.worker_pids():
            os.kill(pid, signal.SIGKILL)
        site.assert_equal(seed=5)
        ray_machines.await_workers(fleet, 2)  # others in their places
        site.assert_equal(seed=6)
        ray_machines.remove(ray_machines.nodes[-1])
        site.assert_equal(seed=7)


def test_a_machine_whose_daemon_ends_by_itself_is_replaced_while_a_test_waits(ray_machines: Machines) -> None:
    with ray_machines.fleet(1) as fleet:
        ended = ray_machines.nodes[0]
        os.kill(raylet_pid(ended), signal.SIGKILL)
        ray_machines.until(lambda: ray_machines.nodes[0] is not ended)
        ray_machines.await_workers(fleet, 1)
        assert len(ray_machines.nodes) == 1


def test_a_round_that_is_left_is_ended_at_ray_workers_and_they_go_on(
    ray_machines: Machines, site: Site
) -> None:
    def leaves() -> None:
        raise HelperUnavailable("the caller has gone")

    with ray_machines.fleet(1) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local)
        with pytest.raises(HelperUnavailable):
            site.cluster.masked_sum(site.gradient, site.records, sampled(1.0), leaves)
        site.assert_equal()
        assert fleet.workers()


def test_a_stopped_worker_process_holds_no_round_up_and_another_takes_its_place(
    ray_machines: Machines, site: Site
) -> None:
    with ray_machines.fleet(1, keepalive=Keepalive(every_s=1.0, answer_s=1.0)) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local)
        site.assert_equal()
        (before,), (pid,) = fleet.workers(), ray_machines.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            expected = site.local.masked_sum(site.gradient, site.records, sampled(0.5), never)
            found = site.cluster.masked_sum(site.gradient, site.records, sampled(0.5), never)
            assert found.vector.tobytes() == expected.vector.tobytes()
            assert before not in fleet.workers()
            ray_machines.await_workers(fleet, 1)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        site.assert_equal(seed=7)


def test_workers_on_ray_open_shares_as_this_machine_does_and_others_do_when_one_is_killed(
    ray_machines: Machines, site: Site
) -> None:
    of = world()
    opener, incoming = of.opener(0), shares_for(reports(of, examples(of.task, 4 * MIN_CHUNK)), 0)
    expected = opener.open(incoming)
    with ray_machines.fleet(1) as fleet:
        cluster = ClusterExecutor(fleet, site.local, opens_shares=True)
        for _ in range(2):
            found = cluster.open(opener, incoming)
            assert found.admitted.view_tags.tobytes() == expected.admitted.view_tags.tobytes()
            assert found.shares.mask_shares.tobytes() == expected.shares.mask_shares.tobytes()
            for pid in ray_machines.worker_pids():
                os.kill(pid, signal.SIGKILL)


def test_workers_on_ray_add_updates_up_as_this_machine_does_and_others_do_when_one_is_killed(
    ray_machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MOST_SHARES", 2)
    made = UpdateSite(tmp_path)
    with ray_machines.fleet(1) as fleet, made.local:
        made.cluster = ClusterExecutor(fleet, made.local)
        made.assert_equal()
        for pid in ray_machines.worker_pids():
            os.kill(pid, signal.SIGKILL)
        made.assert_equal()
        ray_machines.await_workers(fleet, 1)
        made.assert_equal()


def test_a_helper_looks_at_the_addresses_of_rays_machines_not_only_at_the_one_it_is_told(
    ray_machines: Machines, site: Site
) -> None:
    from helper.executors.ray_fleet import RayFleet

    asked: list[str] = []

    def refuses(address: str) -> None:
        asked.append(address)
        raise InvalidTask("not here")

    tls = worker_tls(ray_machines.certificates)
    with pytest.raises(InvalidTask, match="not here"):
        RayFleet(ray_machines.address, tls, capacity_bytes=0, check_machine=refuses)
    assert asked == [LOOPBACK]

    came_later = False

    def refuses_later(address: str) -> None:
        asked.append(address)
        if came_later:
            raise InvalidTask("a machine that came later")

    with RayFleet(ray_machines.address, tls, capacity_bytes=0, check_machine=refuses_later) as fleet:
        came_later, before = True, len(asked)
        until(lambda: len(asked) > before + 10)
        assert not fleet.workers()
    with ray_machines.fleet(1) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local)
        site.assert_equal()


def test_a_fleet_that_was_closed_starts_no_cluster_of_its_own(ray_machines: Machines) -> None:
    import ray

    with ray_machines.fleet(1) as fleet:
        pass
    with pytest.raises(ray.exceptions.RaySystemError):
        fleet._start(NODE, LOOPBACK)
    assert not ray.is_initialized()


class Client:
    """A worker that greets as a test says."""

    def __init__(self, greet: Callable[[], None] = lambda: None) -> None:
        self.name, self.greet, self.is_closed = secrets.token_bytes(16), greet, False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> "Placed":
    import ray

    from helper.executors import ray_fleet

    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    monkeypatch.setattr(Periodic, "stop", lambda _: None)
    made = Placed()
    monkeypatch.setattr(ray, "wait", lambda ready, **_: (ready if made.has_started else [], []))
    monkeypatch.setattr(ray_fleet, "nodes", lambda: made.nodes)
    monkeypatch.setattr(ray_fleet, "end", made.ended.append)
    made.fleet = ray_fleet.RayFleet("nowhere", MagicMock(), capacity_bytes=0)
    monkeypatch.setattr(made.fleet, "_start", made.start)
    return made


class Placed:
    """A fleet without Ray: what it starts, lets in and ends."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.ended: list[object] = []
        self.has_started = False
        self.fleet: Any = None

    def add(self, node: str, cores: float) -> None:
        self.nodes.append({"NodeID": node, "NodeManagerAddress": node, "Resources": {"CPU": cores}})

    def actor(self, node: str, client: Client | None = None) -> Any:
        from helper.executors.ray_fleet import _Actor

        made: Any = client or Client()
        return _Actor(node=node, address=f"{node}:1", actor=made.name, ready=None, client=made)

    def start(self, node: str, host: str) -> None:
        assert node == host
        self.fleet._starting.append(self.actor(node))

    def join(self, node: str) -> bytes:
        one = self.actor(node)
        self.fleet._joined[one.client.name] = one
        return bytes(one.client.name)

    def look(self) -> list[str]:
        """The nodes of those that start now."""
        self.fleet._look(lambda: False)
        return sorted(one.node for one in self.fleet._starting)


def crashes() -> None:
    raise WorkerLost


def of_another_cluster() -> None:
    raise JoinRefused("has no certificate of this cluster for its address")


def test_failures_before_a_worker_joined_do_not_count_against_its_machine(placed: Placed) -> None:
    from helper.executors import ray_fleet

    for _ in range(ray_fleet._MAX_FAILURES):
        for greet in (crashes, lambda: None, crashes):
            placed.fleet._let_in(placed.actor("node", Client(greet)))
    assert len(placed.fleet.workers()) == ray_fleet._MAX_FAILURES
    assert not placed.fleet.refused
    assert len(placed.ended) == 2 * ray_fleet._MAX_FAILURES


def test_a_machine_whose_worker_is_of_another_cluster_or_never_starts_is_not_asked_again(
    placed: Placed,
) -> None:
    from helper.executors import ray_fleet

    placed.fleet._let_in(placed.actor("other", Client(of_another_cluster)))
    assert placed.fleet.refused == {"other"}
    for _ in range(ray_fleet._MAX_FAILURES):
        assert "broken" not in placed.fleet.refused
        placed.fleet._let_in(placed.actor("broken", Client(crashes)))
    assert placed.fleet.refused == {"other", "broken"}
    for node in ("other", "broken", "right"):
        placed.add(node, 1.0)
    assert placed.look() == ["right"]


@pytest.mark.parametrize("cores", [3.0, 1e9, float("inf"), float("nan")])
def test_a_machine_gets_one_worker_until_that_has_joined(placed: Placed, cores: float) -> None:
    from helper.executors import ray_fleet

    placed.add("node", cores)
    for _ in range(3):
        assert placed.look() == ["node"]
    placed.fleet._starting.clear()
    placed.join("node")
    for _ in range(3):
        assert len(placed.look()) == (2 if cores == 3 else ray_fleet._MOST_WORKERS - 1)


def test_a_machine_whose_worker_answers_wrongly_has_no_worker_any_more(placed: Placed) -> None:
    placed.add("right", 3.0)
    placed.add("wrong", 3.0)
    wrong, _, right = placed.join("wrong"), placed.join("wrong"), placed.join("right")
    assert placed.look() == ["right", "right", "wrong"]
    placed.fleet.refuse(wrong)
    assert placed.look() == ["right", "right"]
    assert placed.fleet.workers().keys() == {right}
    assert placed.fleet.refused == {"wrong"}
    placed.fleet.refuse(wrong)  # as another round may, which had lost it already


def test_workers_of_a_machine_that_is_gone_are_dropped_with_their_calls(placed: Placed) -> None:
    name = placed.join("gone")
    client = placed.fleet.workers()[name]
    assert placed.look() == []
    assert client.is_closed
    assert placed.ended == [name]


class Dropped(dict[bytes, Any]):
    """Workers of which a round drops one as they are gone through, as soon as it gets the lock."""

    lock: Any

    def values(self) -> Any:
        for one in list(super().values()):
            yield one
            if not self.lock.locked():
                raise RuntimeError("dictionary changed size during iteration")


def test_a_fleet_closes_while_a_round_drops_a_worker(placed: Placed) -> None:
    name = placed.join("node")
    placed.fleet._joined = Dropped(placed.fleet._joined)
    placed.fleet._joined.lock = placed.fleet._lock
    placed.fleet.close()
    assert placed.ended == [name]


def test_a_worker_is_not_let_in_whose_machine_is_refused_meanwhile(placed: Placed) -> None:
    placed.add("wrong", 2.0)
    placed.has_started = True
    joined = placed.join("wrong")
    other = placed.actor(
        "wrong", Client(lambda: placed.fleet.refuse(joined))
    )  # another thread's wrong answer
    placed.fleet._starting.append(other)
    assert placed.look() == []
    assert not placed.fleet.workers()
    assert placed.ended == [joined, other.actor]


def test_no_two_workers_of_an_address_get_one_port(placed: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    from helper.executors import ray_fleet

    monkeypatch.undo()
    monkeypatch.setattr(ray_fleet, "end", lambda _: None)
    monkeypatch.setattr(ray_fleet, "PORTS", range(5, 9))
    monkeypatch.setattr(ray_fleet, "WorkerClient", lambda *_: Client())
    placed.fleet._actors = MagicMock()
    for _ in range(4):
        placed.fleet._start(NODE, "::1")
    assert {one.address for one in placed.fleet._starting} == {f"[::1]:{port}" for port in range(5, 9)}


class _Bomb:
    """Runs something where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


class _Raised(Exception):
    """The same, raised."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._bomb = _Bomb(path)

    def __reduce__(self) -> tuple[type["_Raised"], tuple[_Bomb]]:
        return _Raised, (self._bomb,)


def _explode(path: Path, is_raised: bool) -> _Bomb:
    if is_raised:
        raise _Raised(path)
    return _Bomb(path)


@pytest.mark.parametrize("is_raised", [False, True])
def test_nothing_that_comes_from_ray_runs_at_the_head(
    ray_machines: Machines, tmp_path: Path, is_raised: bool
) -> None:
    import ray

    with ray_machines.fleet(1):
        answer = ray.remote(num_cpus=0, max_retries=0)(_explode).remote(tmp_path / "ran", is_raised)
        with pytest.raises(ray.exceptions.RayError):
            ray.get(answer)
    assert not (tmp_path / "ran").exists()


def test_nothing_is_read_of_what_ray_holds_and_nothing_of_ray_is_replaced() -> None:
    """What actors return or raise is a pickle, which runs where it is read."""
    folder = Path("helper/executors")
    code = "".join(path.read_text() for path in folder.glob("*.py"))
    assert not re.findall(r"ray\.get\b|ray\.put\b|ray\._private|_deserialize", code)
    assert re.findall(r"ray\.wait\b", code)


@pytest.mark.parametrize("wrong", ["another", "open", "missing"])
def test_a_machine_without_a_certificate_of_the_cluster_is_refused(
    ray_machines: Machines, site: Site, wrong: str
) -> None:
    path = ray_machines.folder / "missing"
    if wrong == "another":
        path = certified(ray_machines.folder / "others", LOOPBACK) / WORKERS
    if wrong == "open":
        path = certified(ray_machines.folder / "open", LOOPBACK) / WORKERS
        (path / "tls.key").chmod(0o640)
    with ray_machines.fleet(1) as fleet:
        ray_machines.add(certificates=path)
        try:
            ray_machines.until(lambda: ray_machines.nodes[-1].node_id in fleet.refused)
            site.cluster = ClusterExecutor(fleet, site.local)
            site.assert_equal()
            assert len(fleet.workers()) == 1
        finally:
            ray_machines.remove(ray_machines.nodes[-1])

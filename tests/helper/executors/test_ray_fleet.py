"""Workers on Ray: a head without processors, and raylets of this machine that come and go."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from helper.datasets import segments
from helper.executors import adding
from helper.executors.clustered import ClusterExecutor
from helper.executors.fleet import NoWorkers
from helper.executors.handshake import HandshakeClient, JoinToken, Session
from helper.executors.processes import MIN_CHUNK
from helper.executors.worker import SegmentWorker
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.interrupt import never
from maskedlark.runtime.periodic import Periodic
from tests.builders import examples, reports, shares_for, world
from tests.helper.executors.clustered_site import Hours, Site, sampled
from tests.helper.executors.test_adding import Site as UpdateSite

pytest.importorskip("ray", reason="needs the extra `ray`: make setup-cluster")

from tests.helper.executors.ray_machines import (  # needs ray
    LOOPBACK,
    Machines,
    await_workers,
    machines,
    until,
)

pytestmark = pytest.mark.long


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
        other = ray_machines.add()
        await_workers(fleet, 2)
        site.assert_equal(seed=4)
        for pid in ray_machines.worker_pids():
            os.kill(pid, signal.SIGKILL)
        site.assert_equal(seed=5)
        until(lambda: len(fleet.workers()) == 2)  # others in their places
        site.assert_equal(seed=6)
        ray_machines.remove(other)
        site.assert_equal(seed=7)


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
    clock = Hours(step_s=2.0)  # of a second of waiting, 20
    with ray_machines.fleet(1) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local, clock)
        site.assert_equal()
        (before,), (pid,) = fleet.workers(), ray_machines.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            expected = site.local.masked_sum(site.gradient, site.records, sampled(0.5), never)
            found = site.cluster.masked_sum(site.gradient, site.records, sampled(0.5), clock.interrupt)
            assert found.vector.tobytes() == expected.vector.tobytes()
            assert before not in fleet.workers()
            until(lambda: len(fleet.workers()) == 1)
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
    monkeypatch.setattr(adding, "MOST_SHARES", 2)
    made = UpdateSite(tmp_path)
    with ray_machines.fleet(1) as fleet, made.local:
        made.cluster = ClusterExecutor(fleet, made.local)
        made.assert_equal()
        for pid in ray_machines.worker_pids():
            os.kill(pid, signal.SIGKILL)
        made.assert_equal()
        until(lambda: len(fleet.workers()) == 1)
        made.assert_equal()


def test_a_helper_looks_at_the_addresses_of_rays_machines_not_only_at_the_one_it_is_told(
    ray_machines: Machines, site: Site
) -> None:
    from helper.executors.ray_fleet import RayFleet

    asked: list[str] = []

    def refuses(address: str) -> None:
        asked.append(address)
        raise InvalidTask("not here")

    token = JoinToken.read(ray_machines.token_file)
    with pytest.raises(InvalidTask, match="not here"):
        RayFleet(ray_machines.address, token, capacity_bytes=0, check_machine=refuses)
    assert asked == [LOOPBACK]

    came_later = False

    def refuses_later(address: str) -> None:
        asked.append(address)
        if came_later:
            raise InvalidTask("a machine that came later")

    with RayFleet(ray_machines.address, token, capacity_bytes=0, check_machine=refuses_later) as fleet:
        came_later, before = True, len(asked)
        until(lambda: len(asked) > before + 10)
        assert not fleet.workers()
    with ray_machines.fleet(1) as fleet:
        site.cluster = ClusterExecutor(fleet, site.local)
        site.assert_equal()


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


def _zeros(length: int) -> bytes:
    return bytes(length)


def test_a_long_application_is_refused_and_not_fetched(
    ray_machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from helper.executors import ray_connection, ray_fleet

    with ray_machines.fleet(1) as fleet:
        short, long = (ray.remote(num_cpus=0)(_zeros).remote(length) for length in (200, 8 << 20))
        ray.wait([short, long], num_returns=2, fetch_local=False)
        assert not ray_connection.is_far(short)
        assert ray_connection.is_far(long)  # at once, though Ray does not know yet where it lies
        monkeypatch.setattr(ray, "get", None)
        monkeypatch.setattr(ray_fleet, "end", lambda _: None)
        fleet._let_in(ray_fleet._Applying(node="hostile", actor=None, challenge=bytes(32), application=long))
        assert "hostile" in fleet.refused


def test_a_fleet_that_was_closed_starts_no_cluster_of_its_own(ray_machines: Machines) -> None:
    import ray

    with ray_machines.fleet(1) as fleet:
        pass
    with pytest.raises(NoWorkers):
        fleet.share(bytes(1 << 20))
    assert not ray.is_initialized()


def test_a_stop_does_not_wait_for_the_order_that_it_ends() -> None:
    from helper.executors.ray_fleet import _Actor

    asked: list[tuple[dict[str, str], bytes]] = []

    class Stub:
        """An actor that keeps what it is asked."""

        def options(self, **how: str) -> "Stub":
            self.how = how
            return self

        def remote(self, sealed: bytes) -> None:
            asked.append((self.how, sealed))

    stub = Stub()
    session = Session(bytes(32), bytes(32))
    _Actor(name=b"n", node="node", actor=SimpleNamespace(stop=stub), session=session).stop(b"sealed")
    assert asked == [({"concurrency_group": "control"}, b"sealed")]


def test_failures_before_a_worker_joined_do_not_count_against_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from helper.executors import ray_fleet

    def get(application: Callable[[], bytes], *, timeout: float) -> bytes:
        del timeout
        return application()

    def crashes() -> bytes:
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray_fleet, "end", lambda _: None)
    monkeypatch.setattr(ray_fleet, "nodes", list)
    monkeypatch.setattr(ray_fleet, "is_far", lambda _: False)
    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    token = JoinToken(bytes(32))
    fleet = ray_fleet.RayFleet("nowhere", token, capacity_bytes=0)
    for _ in range(ray_fleet._MAX_FAILURES):
        joins, challenge = SegmentWorker(token, 0), bytes(32)
        for application in (crashes, lambda asked=joins: asked.apply(bytes(32)), crashes):
            actor = SimpleNamespace(welcome=SimpleNamespace(remote=joins.welcome))
            fleet._let_in(
                ray_fleet._Applying(node="node", actor=actor, challenge=challenge, application=application)
            )
    assert len(fleet.workers()) == ray_fleet._MAX_FAILURES
    assert not fleet.refused


@pytest.mark.parametrize("cores", [3.0, 1e9, float("inf"), float("nan")])
def test_a_machine_gets_one_worker_until_that_has_shown_the_token(
    monkeypatch: pytest.MonkeyPatch, cores: float
) -> None:
    import ray

    from helper.executors import ray_fleet

    def ask(node: str) -> None:
        fleet._applying.append(
            ray_fleet._Applying(node=node, actor=None, challenge=bytes(32), application=None)
        )

    node = {"NodeID": "node", "NodeManagerAddress": "here", "Resources": {"CPU": cores}}
    monkeypatch.setattr(ray, "wait", lambda *_, **__: ([], []))
    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(ray_fleet, "nodes", lambda: [node])
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    fleet = ray_fleet.RayFleet("nowhere", JoinToken(bytes(32)), capacity_bytes=0)
    monkeypatch.setattr(fleet, "_ask", ask)
    for _ in range(3):
        fleet._look(lambda: False)
    assert len(fleet._applying) == 1
    fleet._applying.clear()
    session = Session(bytes(32), bytes(32))
    fleet._joined[b"one"] = ray_fleet._Actor(name=b"one", node="node", actor=None, session=session)
    for _ in range(3):
        fleet._look(lambda: False)
    assert len(fleet._applying) == (2 if cores == 3 else ray_fleet._MOST_WORKERS - 1)


def test_a_machine_whose_worker_answers_wrongly_has_no_worker_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from helper.executors import ray_fleet

    def asked(node: str) -> ray_fleet._Applying:
        return ray_fleet._Applying(node=node, actor=None, challenge=bytes(32), application=None)

    nodes = [
        {"NodeID": node, "NodeManagerAddress": node, "Resources": {"CPU": 3.0}} for node in ("right", "wrong")
    ]
    monkeypatch.setattr(ray, "wait", lambda *_, **__: ([], []))
    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(ray_fleet, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_fleet, "end", lambda _: None)
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    fleet = ray_fleet.RayFleet("nowhere", JoinToken(bytes(32)), capacity_bytes=0)
    monkeypatch.setattr(fleet, "_ask", lambda node: fleet._applying.append(asked(node)))
    session = Session(bytes(32), bytes(32))
    for name, node in ((b"1", "wrong"), (b"2", "wrong"), (b"3", "right")):
        fleet._joined[name] = ray_fleet._Actor(name=name, node=node, actor=None, session=session)
    fleet._look(lambda: False)
    assert sorted(one.node for one in fleet._applying) == ["right", "right", "wrong"]
    fleet.refuse(b"1")
    fleet._look(lambda: False)
    assert fleet.workers().keys() == {b"3"}
    assert [one.node for one in fleet._applying] == ["right", "right"]
    assert fleet.refused == {"wrong"}
    fleet.refuse(b"1")  # as another round may, which had lost it already


class Dropped(dict[bytes, Any]):
    """Workers of which a round drops one as they are gone through, as soon as it gets the lock."""

    lock: Any

    def values(self) -> Any:
        for one in list(super().values()):
            yield one
            if not self.lock.locked():
                raise RuntimeError("dictionary changed size during iteration")


def test_a_fleet_closes_while_a_round_drops_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from helper.executors import ray_fleet

    ended: list[object] = []
    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(ray_fleet, "nodes", list)
    monkeypatch.setattr(ray_fleet, "end", ended.append)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    monkeypatch.setattr(Periodic, "stop", lambda _: None)
    fleet = ray_fleet.RayFleet("nowhere", JoinToken(bytes(32)), capacity_bytes=0)
    session = Session(bytes(32), bytes(32))
    fleet._joined = Dropped({b"1": ray_fleet._Actor(name=b"1", node="node", actor="one", session=session)})
    fleet._joined.lock = fleet._lock
    fleet.close()
    assert ended == ["one"]


def test_a_worker_is_not_let_in_whose_machine_is_refused_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from helper.executors import ray_fleet

    node = {"NodeID": "wrong", "NodeManagerAddress": "wrong", "Resources": {"CPU": 2.0}}
    ended: list[object] = []
    monkeypatch.setattr(ray, "wait", lambda *_, **__: ([None], []))
    monkeypatch.setattr(ray_fleet, "connect", lambda *_: None)
    monkeypatch.setattr(ray_fleet, "nodes", lambda: [node])
    monkeypatch.setattr(ray_fleet, "is_far", lambda _: False)
    monkeypatch.setattr(ray_fleet, "end", ended.append)
    monkeypatch.setattr(Periodic, "start", lambda _: None)
    fleet = ray_fleet.RayFleet("nowhere", JoinToken(bytes(32)), capacity_bytes=0)
    applicant, challenge = HandshakeClient(JoinToken(bytes(32))), bytes(32)
    other = MagicMock()

    def applied(*_: object, **__: object) -> bytes:
        fleet.refuse(b"1")  # another thread, which has just taken a wrong answer
        return applicant.apply(challenge)

    monkeypatch.setattr(ray, "get", applied)
    session = Session(bytes(32), bytes(32))
    fleet._joined[b"1"] = ray_fleet._Actor(name=b"1", node="wrong", actor=None, session=session)
    fleet._applying.append(
        ray_fleet._Applying(node="wrong", actor=other, challenge=challenge, application=None)
    )
    fleet._look(lambda: False)
    assert not fleet.workers()
    assert ended == [None, other]


@pytest.mark.parametrize("wrong", ["another", "short", "open", "missing"])
def test_a_machine_without_the_token_is_refused(ray_machines: Machines, site: Site, wrong: str) -> None:
    path = ray_machines.folder / wrong
    if wrong != "missing":
        path.write_text(ray_machines.token_file.read_text() if wrong == "open" else secrets.token_hex(16))
        path.chmod(0o644 if wrong == "open" else 0o600)
    if wrong == "short":
        path.write_text("short")
    with ray_machines.fleet(1) as fleet:
        node = ray_machines.add(token_file=path)
        try:
            until(lambda: node.node_id in fleet.refused)
            site.cluster = ClusterExecutor(fleet, site.local)
            site.assert_equal()
            assert len(fleet.workers()) == 1
        finally:
            ray_machines.remove(node)

"""A Ray cluster of several raylets on this machine, and a fleet of workers on them."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import psutil

from tests.ray_environment import tell_ray  # says how Ray authenticates, before it is imported

# isort: split
import ray
from ray.cluster_utils import Cluster

from helper.executors.ray_fleet import RayFleet
from helper.executors.ray_worker import TLS_VARIABLE
from helper.trust.cluster_secrets import WORKERS, worker_tls
from maskedlark.rpc.keepalive import Keepalive
from tests.helper.executors.served_workers import certified
from tests.patience import HANGS_S

OBJECT_STORE_BYTES = 80 << 20
WORKER_BYTES = 64 << 20
_STARTS = 3
_MOST_REPLACED = 2
LOOPBACK = "127.0.0.2"


@dataclass(kw_only=True, eq=False)
class Machines:
    """The head of a Ray cluster, which computes nothing, and machines that come and go."""

    cluster: Any
    folder: Path
    certificates: Path
    nodes: list[Any] = field(default_factory=list)
    replaced: int = 0
    """How many machines ended by themselves."""
    _starts: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def add(
        self, cores: int = 1, certificates: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Any:
        """One more machine, with certificates of the cluster or with another folder in their place."""
        return in_a_few_starts(partial(self.add_once, cores, certificates, environment), self._end_late)

    def add_once(
        self, cores: int = 1, certificates: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Any:
        """The same, of which Ray's time to start is enough or not."""
        node = self.cluster.add_node(
            num_cpus=cores,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            node_ip_address=LOOPBACK,
            env_vars={TLS_VARIABLE: str(certificates or self.certificates), **(environment or {})},
        )
        self.nodes.append(node)
        self._starts[node.node_id] = partial(self.add_once, cores, certificates, environment)
        return node

    def _end_late(self) -> None:
        """End the machines that Ray has given up, which may join all the same."""
        known = [raylet_pid(one) for one in (self.cluster.head_node, *self.nodes)]
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # it has ended by itself
                of_this_cluster = f"--gcs-address={self.address}" in child.cmdline()
                if child.name() == "raylet" and of_this_cluster and child.pid not in known:
                    child.kill()

    def remove(self, node: Any) -> None:
        """End a machine at once."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def worker_pids(self, node: Any = None) -> list[int]:
        """The processes that hold segments: of all machines, or of one."""
        raylets = [raylet_pid(one) for one in (self.nodes if node is None else [node])]
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "ppid"])
            if (process.info["cmdline"] or [""])[0].startswith("ray::RayWorker")
            and process.info["ppid"] in raylets
        ]

    @contextmanager
    def fleet(
        self, workers: int, *, worker_bytes: int = WORKER_BYTES, keepalive: Keepalive | None = None
    ) -> Iterator[RayFleet]:
        """A helper's fleet, once so many workers have joined."""
        with RayFleet(
            self.address,
            worker_tls(self.certificates),
            capacity_bytes=worker_bytes,
            keepalive=keepalive or Keepalive(),
        ) as fleet:
            self.await_workers(fleet, workers)
            yield fleet

    def await_workers(self, fleet: RayFleet, count: int) -> None:
        """Return once exactly so many workers have joined."""
        self.until(lambda: len(fleet.workers()) == count)

    def until(self, holds: Callable[[], bool]) -> None:
        """Return once something holds that machines bring about.

        Ray's daemon has ended by itself, without a word, as it placed its first worker. Here another takes
        its place, also in `nodes`: what a fleet does then is shown by the machines that a test removes.
        """

        def holds_of_those_that_run() -> bool:
            for at, node in enumerate(self.nodes):
                if not node.remaining_processes_alive():
                    self._replace(at)
            return holds()

        until(holds_of_those_that_run)

    def _replace(self, at: int) -> None:
        self.replaced += 1
        if self.replaced > _MOST_REPLACED:
            raise RuntimeError(f"Ray's daemons ended by themselves {self.replaced} times: see {self.session}")
        ended = self.nodes[at]
        start = self._starts[ended.node_id]
        self.remove(ended)
        self.nodes.insert(at, self.nodes.pop(self.nodes.index(in_a_few_starts(start, self._end_late))))

    @property
    def address(self) -> str:
        """Of the cluster's head."""
        return str(self.cluster.address)

    @property
    def session(self) -> Path:
        """Where Ray keeps its logs, sockets and spilled objects."""
        return Path(self.cluster.head_node.get_session_dir_path())


def in_a_few_starts(start: Callable[[], Any], clean_up: Callable[[], None] = lambda: None) -> Any:
    """What is started. Ray gives it half a minute; where that is not enough, another one is started."""
    for left in reversed(range(_STARTS)):
        try:
            return start()
        except Exception:
            if not left:
                raise
            clean_up()
    raise AssertionError("unreachable")


def raylet_pid(node: Any) -> int:
    """The process id of a machine's daemon."""
    (raylet,) = node.all_processes["raylet"]
    return int(raylet.process.pid)


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """A Ray cluster with token authentication, without dashboard and statistics.

    It is ended in any case, also when this process is asked to end.
    """
    with _ended_by_sigterm(), _machines(folder) as made:
        yield made


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is an exception of the main thread, so that what was begun is ended."""

    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _machines(folder: Path) -> Iterator[Machines]:
    tell_ray()
    certificates = certified(folder / "cluster-secrets", LOOPBACK) / WORKERS
    head = {
        "num_cpus": 0,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "node_ip_address": LOOPBACK,
    }
    cluster = in_a_few_starts(partial(Cluster, initialize_head=True, head_node_args=head))
    try:
        yield Machines(cluster=cluster, folder=folder, certificates=certificates)
    finally:
        ray.shutdown()
        cluster.shutdown()


def until(holds: Callable[[], bool]) -> None:
    """Return once something holds that other processes bring about."""
    ends = time.monotonic() + HANGS_S
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError
        Event().wait(0.05)

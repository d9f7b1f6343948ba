"""Workers on Ray Core, an actor a core of every machine in a Ray cluster. Needs the extra `ray`.

    with RayFleet("127.0.0.1:6379", worker_tls(folder), capacity_bytes=4 << 30) as fleet:
        ClusterExecutor(fleet, LocalExecutor())

Ray places processes and says which machines there are. Nothing else passes through it: the head calls each
worker itself, over mutual TLS (`worker_client`). A thread looks every second for machines that came, and lets
their workers join; a worker that is refused is ended, and so is every other one of its machine.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, Self

from helper.executors.ray_connection import connect, end, nodes  # sets what ray reads

# isort: split
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from helper.executors.fleet import JoinRefused, Worker, WorkerLost
from helper.executors.ray_worker import RayWorker
from helper.executors.worker_client import WorkerClient
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.randomness import system_randomness
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.periodic import IsStopped, Periodic

LOOK_EVERY_S: Final = 1.0
PORTS: Final = range(20_000, 21_000)
"""The ports of workers: below those that systems give to connections, and above Ray's own."""
_NAME_BYTES: Final = 16
_NO_TIME: Final = 0.0
_MAX_FAILURES: Final = 3
# Of one machine, however many cores it says that it has.
_MOST_WORKERS: Final = 512
_KEEPALIVE: Final = Keepalive()
_NOT_STARTED: Final = "did not start, or does not take this helper's certificate: see its log"
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class _Actor:
    """A worker that was placed.

    Attributes:
        node: The Ray node.
        address: Where it serves.
        actor: Ray's handle.
        ready: Ray's promise of `RayWorker.ready`.
        client: Calls it.
    """

    node: str
    address: str
    actor: Any = field(repr=False)
    ready: Any = field(repr=False)
    client: WorkerClient = field(repr=False)

    def end(self) -> None:
        """End its calls and its process."""
        self.client.close()
        end(self.actor)


class RayFleet:
    """The workers of one helper on a Ray cluster."""

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        *,
        capacity_bytes: int,
        check_machine: Callable[[str], None] = lambda _: None,
        interrupt: Interrupt = never,
        keepalive: Keepalive = _KEEPALIVE,
    ) -> None:
        """Connect, and begin to take workers in.

        Args:
            address: host:port of the cluster's head, of which this machine is a part.
            tls: This machine's key and certificate, and the authority of the workers'.
            capacity_bytes: How much of opened segments each worker keeps in memory.
            check_machine: Raises InvalidTask at the address of a machine that the cluster must not have. One
                that comes later gets no worker.
            interrupt: Ends the wait for a cluster that does not answer, if it raises.
            keepalive: How soon a worker that stands still is lost.

        Raises:
            InvalidTask: there is no Ray cluster, or `check_machine` raised it.
        """
        self._tls, self._keepalive, self._check_machine = tls, keepalive, check_machine
        connect(address, interrupt)
        try:
            for node in nodes():
                check_machine(node["NodeManagerAddress"])
        except InvalidTask:
            ray.shutdown()
            raise
        self._outside: set[str] = set()
        # Never restarted by Ray: a worker that ended is let in anew only through its greeting.
        self._actors = ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._joined: dict[bytes, _Actor] = {}
        self._starting: list[_Actor] = []
        self._refused: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._looking = Periodic(
            self._look,
            name="ray-fleet",
            every_s=LOOK_EVERY_S,
            survives=(RayError, ConnectionError, InvalidTask),
        )
        self._looking.start()

    @property
    def refused(self) -> frozenset[str]:
        """The Ray nodes whose workers are let in no more."""
        return frozenset(self._refused)

    def workers(self) -> Mapping[bytes, Worker]:
        """See `Fleet`."""
        with self._lock:
            return {name: one.client for name, one in self._joined.items()}

    def drop(self, name: bytes) -> None:
        """See `Fleet`."""
        with self._lock:
            lost = self._joined.pop(name, None)
        if lost is not None:
            lost.end()

    def refuse(self, name: bytes) -> None:
        """See `Fleet`; the other workers of the machine are ended too."""
        with self._lock:
            wrong = self._joined.get(name)
            of_machine = [name for name, one in self._joined.items() if wrong and one.node == wrong.node]
            if wrong is not None:
                self._refused.add(wrong.node)
        if wrong is not None:
            _LOG.error(
                "Ray node %s gets no worker any more: one of its own answered wrongly", wrong.node[:12]
            )
        for other in of_machine:
            self.drop(other)

    def close(self) -> None:
        """See `Fleet`."""
        self._looking.stop()
        with self._lock:
            joined = list(self._joined.values())
            self._joined.clear()
        for one in joined + self._starting:
            one.end()
        ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, is_stopped: IsStopped) -> None:
        """Let those in that have started, forget machines that are gone, and start new workers.

        A machine gets one worker, and one a core once that has joined.
        """
        machines = {
            node["NodeID"]: node
            for node in nodes()
            if self._is_allowed(node["NodeID"], node["NodeManagerAddress"])
        }
        with self._lock:
            gone = [name for name, one in self._joined.items() if one.node not in machines]
        for name in gone:
            self.drop(name)
        for one in list(self._starting):
            if is_stopped():
                return
            if one.node not in machines or one.node in self._refused:
                self._starting.remove(one)
                one.end()
            # Not fetched: what an actor returns is a pickle.
            elif ray.wait([one.ready], timeout=_NO_TIME, fetch_local=False)[0]:
                self._starting.remove(one)
                self._let_in(one)
        with self._lock:  # rounds drop workers meanwhile
            joined = [one.node for one in self._joined.values()]
        taken = Counter(joined + [one.node for one in self._starting])
        for node, about in machines.items():
            cores = int(min(_MOST_WORKERS, about["Resources"].get("CPU", 0)))  # whatever it says
            wanted = cores if node in joined else min(cores, 1)
            for _ in range(wanted - taken[node] if node not in self._refused else 0):
                self._start(node, about["NodeManagerAddress"])

    def _is_allowed(self, node: str, address: str) -> bool:
        """Return whether a machine may have workers."""
        try:
            self._check_machine(address)
        except InvalidTask as refusal:
            if node not in self._outside:
                _LOG.warning("Ray node %s gets no worker: %s", node[:12], refusal)
            self._outside.add(node)
            return False
        return True

    def _start(self, node: str, host: str) -> None:
        """Start a worker on a machine, at a port that none of its others has."""
        shown = f"[{host}]" if ":" in host else host
        with self._lock:
            taken = {one.address for one in (*self._joined.values(), *self._starting)}
        free = [port for port in PORTS if f"{shown}:{port}" not in taken]
        if not free:
            return
        # Any of them: a port that another program has taken is not tried for ever.
        address = f"{shown}:{free[int.from_bytes(system_randomness(8), 'little') % len(free)]}"
        client = WorkerClient(system_randomness(_NAME_BYTES), address, self._tls, self._keepalive)
        # There or nowhere: the certificate of a machine is for its address.
        placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._actors.options(scheduling_strategy=placed).remote(self._capacity_bytes, address)
        ready = actor.ready.remote()
        self._starting.append(_Actor(node=node, address=address, actor=actor, ready=ready, client=client))

    def _let_in(self, one: _Actor) -> None:
        """Take a worker in that has started, or end it."""
        try:
            one.client.greet()
        except (JoinRefused, WorkerLost) as error:
            # Ray's text of what ended an actor can hold anything; ours can not
            why = str(error) if isinstance(error, JoinRefused) else _NOT_STARTED
            _LOG.warning("a worker of Ray node %s does not join: it %s", one.node[:12], why)
            self._failures[one.node] += 1
            if isinstance(error, JoinRefused) or self._failures[one.node] >= _MAX_FAILURES:
                self._refused.add(one.node)
            one.end()
            return
        with self._lock:
            is_refused = one.node in self._refused  # while it was greeted
            if not is_refused:
                self._joined[one.client.name] = one
        if is_refused:
            one.end()
            return
        del self._failures[one.node]
        _LOG.info("a worker of Ray node %s joined", one.node[:12])

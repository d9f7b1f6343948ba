"""Workers on Ray Core, an actor a core of every machine in a Ray cluster. Needs the extra `ray`.

    with RayFleet("127.0.0.1:6379", token, capacity_bytes=4 << 30) as fleet:
        ClusterExecutor(fleet, LocalExecutor())

Ray places processes, tells which are lost and carries bytes. It is trusted with none of them: its object
store, logs, spill files and control plane see public keys and ciphertext. A thread looks every second for
machines that came, and lets their workers join; a worker that is refused is ended, and so is every other one
of its machine.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import field
from typing import Any, Final, Self

from helper.executors.ray_connection import answer, connect, end, is_far, nodes  # sets what ray reads

# isort: split
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from helper.executors.fleet import NoWorkers, Worker
from helper.executors.handshake import HandshakeServer, JoinRefused, JoinToken, Session
from helper.executors.orders import CARRIED_BYTES, pieces
from helper.executors.ray_worker import RayWorker
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.randomness import system_randomness
from maskedlark.runtime.periodic import IsStopped, Periodic

LOOK_EVERY_S: Final = 1.0
_NAME_BYTES: Final = 16
_NO_TIME: Final = 0.0
_MAX_FAILURES: Final = 3
_MOST_WORKERS: Final = 1024
"""Of one machine, however many cores it says that it has."""
_CONTROL: Final = "control"
_OPENING: Final = "opening"
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class _Actor:
    """A worker that joined."""

    name: bytes
    node: str
    actor: Any = field(repr=False)
    session: Session

    def do(self, order: bytes, shared: Any, frames: bytes, *, is_opening: bool) -> "Future[bytes]":
        """See `Worker`."""
        do = self.actor.do.options(concurrency_group=_OPENING) if is_opening else self.actor.do
        return answer(lambda: do.remote(shared, frames, *pieces(order)))

    def stop(self, sealed: bytes) -> None:
        """See `Worker`."""
        try:
            self.actor.stop.options(concurrency_group=_CONTROL).remote(sealed)  # else it waits for the order
        except RayError:
            _LOG.info("a worker that was to stop is lost")

    def alive(self, sealed: bytes) -> "Future[bytes]":
        """See `Worker`."""
        return answer(lambda: self.actor.alive.options(concurrency_group=_CONTROL).remote(sealed))


@frozen(eq=False)
class _Applying:
    """An actor that was asked whether it may join."""

    node: str
    actor: Any = field(repr=False)
    challenge: bytes
    application: Any = field(repr=False)


class RayFleet:
    """The workers of one helper on a Ray cluster."""

    def __init__(
        self,
        address: str,
        token: JoinToken,
        *,
        capacity_bytes: int,
        check_machine: Callable[[str], None] = lambda _: None,
        interrupt: Interrupt = never,
    ) -> None:
        """Connect, and begin to take workers in.

        Args:
            address: host:port of the cluster's head, of which this machine is a part.
            token: What workers have to have too.
            capacity_bytes: How much of opened segments each worker keeps in memory.
            check_machine: Raises InvalidTask at the address of a machine that the cluster must not have. One
                that comes later gets no worker.
            interrupt: Ends the wait for a cluster that does not answer, if it raises.

        Raises:
            InvalidTask: there is no Ray cluster, or `check_machine` raised it.
        """
        self._gate, self._check_machine = HandshakeServer(token), check_machine
        connect(address, interrupt)
        try:
            for node in nodes():
                check_machine(node["NodeManagerAddress"])
        except InvalidTask:
            ray.shutdown()
            raise
        self._outside: set[str] = set()
        self._actors = ray.remote(num_cpus=1, max_restarts=0, concurrency_groups={_CONTROL: 1, _OPENING: 1})(
            RayWorker
        )
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._joined: dict[bytes, _Actor] = {}
        self._applying: list[_Applying] = []
        self._refused: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._looking = Periodic(
            self._look, name="ray-fleet", every_s=LOOK_EVERY_S, survives=(RayError, ConnectionError)
        )
        self._looking.start()

    @property
    def refused(self) -> frozenset[str]:
        """The Ray nodes whose workers are let in no more."""
        return frozenset(self._refused)

    def workers(self) -> Mapping[bytes, Worker]:
        """See `Fleet`."""
        with self._lock:
            return dict(self._joined)

    def drop(self, name: bytes) -> None:
        """See `Fleet`."""
        with self._lock:
            lost = self._joined.pop(name, None)
        if lost is not None:
            end(lost.actor)

    def refuse(self, name: bytes) -> None:
        """See `Fleet`; the other workers of the machine are ended too."""
        with self._lock:
            wrong = self._joined.get(name)
            of_machine = [one.name for one in self._joined.values() if wrong and one.node == wrong.node]
            if wrong is not None:
                self._refused.add(wrong.node)
        if wrong is not None:
            _LOG.error(
                "Ray node %s gets no worker any more: one of its own answered wrongly", wrong.node[:12]
            )
        for one in of_machine:
            self.drop(one)

    def share(self, sealed: bytes) -> Any:
        """See `Fleet`; what is short goes with each order."""
        if len(sealed) <= CARRIED_BYTES:
            return sealed
        try:
            return ray.put(sealed)
        except RayError:
            _LOG.warning("Ray does not take what a round needs: it is done without workers")
            raise NoWorkers from None

    def close(self) -> None:
        """See `Fleet`."""
        self._looking.stop()
        with self._lock:
            joined = [one.actor for one in self._joined.values()]
            self._joined.clear()
        for actor in joined + [one.actor for one in self._applying]:
            end(actor)
        ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, is_stopped: IsStopped) -> None:
        """Let those in who answered, forget machines that are gone, and ask new ones.

        A machine gets one worker, and one a core once that has shown that it has the token.
        """
        cores = {
            node["NodeID"]: int(min(_MOST_WORKERS, node["Resources"].get("CPU", 0)))  # whatever it says
            for node in nodes()
            if self._is_allowed(node["NodeID"], node["NodeManagerAddress"])
        }
        with self._lock:
            self._joined = {name: one for name, one in self._joined.items() if one.node in cores}
        for one in list(self._applying):
            if is_stopped():
                return
            if one.node not in cores or one.node in self._refused:
                self._applying.remove(one)
                end(one.actor)
            elif ray.wait([one.application], timeout=_NO_TIME, fetch_local=False)[0]:
                self._applying.remove(one)
                self._let_in(one)
        with self._lock:  # rounds drop workers meanwhile
            joined = [one.node for one in self._joined.values()]
        taken = Counter(joined + [one.node for one in self._applying])
        proven = set(joined)
        for node, count in cores.items():
            wanted = count if node in proven else min(count, 1)
            for _ in range(wanted - taken[node] if node not in self._refused else 0):
                self._ask(node)

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

    def _ask(self, node: str) -> None:
        """Start a worker on a machine, and ask it to join."""
        placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._actors.options(scheduling_strategy=placed).remote(self._capacity_bytes)
        challenge = self._gate.challenge()
        self._applying.append(
            _Applying(node=node, actor=actor, challenge=challenge, application=actor.apply.remote(challenge))
        )

    def _let_in(self, one: _Applying) -> None:
        """Take a worker in that answered, or end it."""
        try:
            if is_far(one.application):
                raise JoinRefused("a worker's application is too long")
            admitted = self._gate.admit(one.challenge, ray.get(one.application, timeout=_NO_TIME))
        except (JoinRefused, RayError) as error:
            # Ray's text of what ended an actor can hold anything; ours can not
            why = str(error) if isinstance(error, JoinRefused) else "it did not start; see its log"
            _LOG.warning("a worker of Ray node %s does not join: %s", one.node[:12], why)
            self._failures[one.node] += 1
            if isinstance(error, JoinRefused) or self._failures[one.node] >= _MAX_FAILURES:
                self._refused.add(one.node)
            end(one.actor)
            return
        one.actor.welcome.remote(admitted.welcome)  # an actor does what it is asked in order
        name = system_randomness(_NAME_BYTES)
        joined = _Actor(name=name, node=one.node, actor=one.actor, session=admitted.session)
        with self._lock:
            is_refused = one.node in self._refused  # since its application was looked at
            if not is_refused:
                self._joined[name] = joined
        if is_refused:
            end(one.actor)
            return
        del self._failures[one.node]
        _LOG.info("a worker of Ray node %s joined", one.node[:12])

"""A discrete-event kernel that runs real threaded code, one thread at a time, under a mock clock.

Code under test keeps its threads, events and waits; they are given the ones below in place of Python's
(`tests.simulation.patches`). Exactly one actor runs at any moment, and it runs until it waits; who runs next
is decided by simulated time and order of arrival alone, so a run is a function of its seed. A process that is
killed never runs another line: whatever its actors wait for raises `Killed`.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from threading import Lock, Thread
from typing import Final

_MOST_EVENTS: Final = 2_000_000


class Killed(BaseException):
    """The simulated process is gone: nothing may catch this."""


class Process:
    """One simulated operating-system process, from its start to its death."""

    def __init__(self, kernel: "Kernel", name: str, *, skew_s: float, on_death: Callable[[], None]) -> None:
        self.name = name
        self.is_alive = True
        self.skew_s = skew_s
        self.on_death = on_death
        self.paused_until_s = 0.0
        self.actors: list[Actor] = []
        self._kernel = kernel

    def clock(self) -> float:
        """What this machine's clock shows."""
        return self._kernel.now_s + self.skew_s

    def check(self) -> None:
        """Raise `Killed` if the process is gone."""
        if not self.is_alive:
            raise Killed(self.name)

    def kill(self) -> None:
        """End it: its actors unwind when they are next touched, and can change nothing any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        for actor in self.actors:
            self._kernel.wake(actor)
        self.on_death()


class Actor:
    """One thread of a simulated process."""

    def __init__(self, kernel: "Kernel", process: Process, body: Callable[[], None], name: str) -> None:
        self.process = process
        self.name = name
        self.is_over = False
        self.wakes = 0  # a wake-up that was meant for an earlier wait is ignored
        self.turn = Lock()
        self.turn.acquire()
        self.joining: list[Actor] = []
        self._kernel = kernel
        self._body = body
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self.process.check()
            self._body()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001  a thread's death is a finding, not the end of the simulation
            self._kernel.complain(f"{self.name} died: {type(error).__name__}: {error}")
        finally:
            self.is_over = True
            self.process.actors.remove(self)
            for actor in self.joining:
                self._kernel.wake(actor)
            self._kernel.turn.release()


class Kernel:
    """The clock and the queue."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s
        self.turn = Lock()
        self.turn.acquire()
        self.running: Actor | None = None
        self.complaints: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def complain(self, what: str) -> None:
        """Note something that must never happen."""
        self.complaints.append(what)

    def at(self, delay_s: float, action: Callable[[], object]) -> None:
        """Do something later, in no process."""
        self._count += 1
        heappush(self._queue, (self.now_s + max(0.0, delay_s), self._count, action))

    def spawn(self, process: Process, body: Callable[[], None], name: str) -> Actor:
        """Start a thread of a process."""
        process.check()
        actor = Actor(self, process, body, name)
        process.actors.append(actor)
        self._wake_later(actor, 0.0)
        return actor

    def run(self, until_s: float) -> None:
        """Let time pass."""
        for _ in range(_MOST_EVENTS):
            if not self._queue or self._queue[0][0] > until_s:
                break
            at_s, _, action = heappop(self._queue)
            self.now_s = max(self.now_s, at_s)
            action()
        self.now_s = max(self.now_s, until_s)

    def park(self, timeout_s: float | None = None) -> None:
        """The running actor waits until it is woken, or for some seconds."""
        actor = self.running
        if actor is None:
            raise AssertionError("only an actor can wait")
        actor.process.check()
        if timeout_s is not None:
            self._wake_later(actor, timeout_s)
        self.running = None
        self.turn.release()
        actor.turn.acquire()
        actor.process.check()

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """The running actor waits until something holds, whoever wakes it meanwhile.

        Whether it holds at the end.
        """
        deadline_s = None if timeout_s is None else self.now_s + timeout_s
        while not is_done() and (deadline_s is None or self.now_s < deadline_s):
            self.park(None if deadline_s is None else deadline_s - self.now_s)
        return is_done()

    def sleep(self, seconds: float) -> None:
        """The running actor does nothing for some time."""
        self.wait_for(lambda: False, seconds)

    def wake(self, actor: Actor) -> None:
        """Let an actor look again at what it waits for."""
        self._wake_later(actor, 0.0)

    def current_process(self) -> Process:
        """The process of the running actor."""
        if self.running is None:
            raise AssertionError("no actor runs")
        return self.running.process

    def _wake_later(self, actor: Actor, delay_s: float) -> None:
        meant = actor.wakes

        def go() -> None:
            if actor.is_over or actor.wakes != meant:
                return
            if actor.process.is_alive and actor.process.paused_until_s > self.now_s:
                self.at(actor.process.paused_until_s - self.now_s, go)
                return
            actor.wakes += 1
            self.running = actor
            actor.turn.release()
            self.turn.acquire()
            self.running = None

        self.at(delay_s, go)

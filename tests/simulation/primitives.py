"""`threading` and `concurrent.futures` as the product uses them, on the simulated clock."""

from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future
from typing import Any, NamedTuple

from tests.simulation.kernel import Actor, Kernel, Killed


class Waited(NamedTuple):
    """What `concurrent.futures.wait` returns."""

    done: "set[Future[Any]]"
    not_done: "set[Future[Any]]"


class Primitives:
    """The names that product modules import, bound to one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        """Make the classes."""

        class SimulatedEvent:
            """`threading.Event`."""

            def __init__(self) -> None:
                self._is_set = False
                self._waiting: list[Actor] = []

            def is_set(self) -> bool:
                return self._is_set

            def set(self) -> None:
                self._is_set = True
                for actor in self._waiting:
                    kernel.wake(actor)

            def clear(self) -> None:
                self._is_set = False

            def wait(self, timeout: float | None = None) -> bool:
                if self._is_set or kernel.running is None:
                    return self._is_set
                actor = kernel.running
                self._waiting.append(actor)
                try:
                    kernel.wait_for(self.is_set, timeout)
                finally:
                    self._waiting.remove(actor)
                return self._is_set

        class SimulatedThread:
            """`threading.Thread`."""

            def __init__(
                self,
                *,
                target: Callable[..., None],
                args: tuple[Any, ...] = (),
                name: str = "thread",
                daemon: bool = True,
            ) -> None:
                self._body = lambda: target(*args)
                self._name = name
                self._actor: Actor | None = None

            def start(self) -> None:
                self._actor = kernel.spawn(kernel.current_process(), self._body, self._name)

            def join(self, timeout: float | None = None) -> None:
                if self._actor is not None:
                    _join(kernel, self._actor, timeout)

        class SimulatedExecutor:
            """`ThreadPoolExecutor`, with a thread for each call."""

            def __init__(self, max_workers: int = 1, thread_name_prefix: str = "pool") -> None:
                self._name = thread_name_prefix
                self._actors: list[Actor] = []

            def __enter__(self) -> "SimulatedExecutor":
                return self

            def __exit__(self, *_: object) -> None:
                self.shutdown(wait=True)

            def submit(self, call: Callable[..., Any], *args: Any, **named: Any) -> "Future[Any]":
                future: Future[Any] = Future()
                future.set_running_or_notify_cancel()

                def body() -> None:
                    try:
                        result = call(*args, **named)
                    except Killed:
                        raise
                    except BaseException as error:  # noqa: BLE001  as ThreadPoolExecutor does
                        future.set_exception(error)
                    else:
                        future.set_result(result)

                self._actors.append(kernel.spawn(kernel.current_process(), body, self._name))
                return future

            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                if wait:
                    for actor in self._actors:
                        _join(kernel, actor, None)

        def simulated_wait(
            futures: "Iterable[Future[Any]]", timeout: float | None = None, return_when: str = ALL_COMPLETED
        ) -> Waited:
            waited = list(futures)
            actor = kernel.running
            if actor is None:
                raise AssertionError("only an actor can wait")
            for future in waited:
                if not future.done():
                    future.add_done_callback(lambda _: kernel.wake(actor))

            def is_enough() -> bool:
                done = [future for future in waited if future.done()]
                has_failed = return_when == FIRST_EXCEPTION and any(
                    future.exception() is not None for future in done
                )
                return len(done) == len(waited) or has_failed

            kernel.wait_for(is_enough, timeout)
            done = {future for future in waited if future.done()}
            return Waited(done=done, not_done=set(waited) - done)

        self.Event = SimulatedEvent
        self.Thread = SimulatedThread
        self.Executor = SimulatedExecutor
        self.wait = simulated_wait


class InlineExecutor:
    """A pool that runs every call at once, where it is submitted: for work whose timing means nothing."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "pool") -> None:
        """Take what ThreadPoolExecutor takes."""

    def submit(self, call: Callable[..., Any], *args: Any, **named: Any) -> "Future[Any]":
        """The call's result, already there."""
        future: Future[Any] = Future()
        future.set_result(call(*args, **named))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is left to do."""


def _join(kernel: Kernel, actor: Actor, timeout_s: float | None) -> None:
    """Wait for an actor's end."""
    waiting = kernel.running
    if waiting is None:
        raise AssertionError("only an actor can wait")
    actor.joining.append(waiting)
    kernel.wait_for(lambda: actor.is_over, timeout_s)

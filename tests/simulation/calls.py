"""One call between the ad server and a helper, as gRPC's stubs and interceptors know it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from tests.simulation.kernel import Kernel


class CallFailed(grpc.RpcError):
    """What a stub raises."""

    def __init__(
        self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        super().__init__(details)
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return [Item(key=key, value=value) for key, value in self._trailing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One pair of metadata."""

    key: str
    value: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.key, self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole reply."""

    messages: list[bytes]
    trailing: tuple[tuple[str, Any], ...]


class Details(NamedTuple):
    """`grpc.ClientCallDetails`."""

    method: str
    timeout: float
    metadata: Any
    credentials: Any = None
    wait_for_ready: Any = None
    compression: Any = None


class Call:
    """A call as stubs and interceptors know it: its replies, and its end."""

    def __init__(self, kernel: Kernel, details: Details) -> None:
        self.details = details
        self.answer: Answer | None = None
        self.ask: Callable[[], Iterator[Any]] = lambda: iter(())
        self._replies: Iterator[Any] | None = None
        self._kernel = kernel
        self._is_cancelled = False
        self._waiting = kernel.running
        self._when_done: list[Callable[[Call], None]] = []

    def wait(self, seconds: float | None, deadline_s: float) -> None:
        """Wait on the way; None: for a reply that never comes."""
        kernel = self._kernel
        until_s = deadline_s if seconds is None else min(kernel.now_s + seconds, deadline_s)
        kernel.wait_for(lambda: self._is_cancelled, until_s - kernel.now_s)
        if self._is_cancelled:
            raise CallFailed(grpc.StatusCode.CANCELLED, "cancelled")
        if kernel.now_s >= deadline_s:
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")

    def done(self, answer: Answer) -> None:
        """The answer is there."""
        self.answer = answer
        for callback in self._when_done:
            callback(self)

    def cancel(self) -> None:
        """End it from another thread."""
        self._is_cancelled = True
        if self._waiting is not None and not self._waiting.is_over:
            self._kernel.wake(self._waiting)

    def add_done_callback(self, callback: "Callable[[Call], None]") -> None:
        """Tell somebody of the answer."""
        self._when_done.append(callback)

    def trailing_metadata(self) -> tuple[Item, ...]:
        """What came with the reply's end."""
        return tuple(
            Item(key=key, value=value) for key, value in (self.answer.trailing if self.answer else ())
        )

    def __iter__(self) -> "Call":
        return self

    def __next__(self) -> Any:
        """The next reply; the first one sends the call."""
        if self._replies is None:
            self._replies = self.ask()
        return next(self._replies)

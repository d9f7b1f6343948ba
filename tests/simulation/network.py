"""The network between the ad server and the helpers in place of gRPC: real stubs at one end, real servicers at the other, bytes between.

What can go wrong with a message goes wrong here: the request or the reply is lost, either arrives twice or long after its caller gave
up, or a stream of requests is cut in the middle.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import grpc

from adserver.receipts import ReceiptExchange
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Killed, Process

_LATENCY_S: Final = (0.001, 0.03)
_LATE_S: Final = (3.0, 30.0)


class CallFailed(grpc.RpcError):
    """What a stub raises."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...] = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return [_Item(key=key, value=value) for key, value in self._trailing]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    key: str
    value: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.key, self.value))


class Context:
    """`grpc.ServicerContext`, as far as the servicers use it."""

    def __init__(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self.trailing: tuple[tuple[str, Any], ...] = ()
        self.failure: CallFailed | None = None
        self._metadata = metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def invocation_metadata(self) -> tuple[Any, ...]:
        return tuple(_Item(key=key, value=value) for key, value in self._metadata)

    def set_trailing_metadata(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self.trailing = tuple(metadata)

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self.trailing

    def is_active(self) -> bool:
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.failure = CallFailed(code, details, self.trailing)
        raise Exception  # exactly what grpc raises


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole reply."""

    messages: list[bytes]
    trailing: tuple[tuple[str, Any], ...]


@dataclass(kw_only=True)
class Host:
    """A helper's address: whoever serves there at the moment.

    Attributes:
        name: Of the helper.
        process: The one that serves; None while it is down.
        methods: Its handlers by path.
        on_answer: Told of every reply that left, with the path, the requests and the replies.
        on_refusal: Told of every call that the servicer refused, with its context.
    """

    name: str
    process: Process | None = None
    methods: dict[str, Any] = field(default_factory=dict)
    on_answer: Callable[[str, list[bytes], list[bytes]], None] = lambda _path, _requests, _replies: None
    on_refusal: Callable[[Context], None] = lambda _context: None

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """What gRPC's generated code calls; the registered ones suffice."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """What gRPC's generated code calls."""
        self.methods = {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def deliver(self, path: str, requests: list[bytes], metadata: tuple[tuple[str, Any], ...], cut_after: int | None) -> Answer:
        """Have the servicer handle one call; a crash in it ends the process."""
        process = self.process
        if process is None or not process.is_alive:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "connection refused")
        handler, context = self.methods[path], Context(metadata)
        try:
            replies = _handle(handler, context, requests, cut_after)
        except Killed:
            process.kill()
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "connection reset") from None
        if context.failure is not None:
            self.on_refusal(context)
            raise context.failure
        self.on_answer(path, requests, replies)
        return Answer(messages=replies, trailing=context.trailing)


def _handle(handler: Any, context: Context, requests: list[bytes], cut_after: int | None) -> list[bytes]:
    def incoming() -> Iterator[Any]:
        for number, request in enumerate(requests):
            if number == cut_after:
                raise CallFailed(grpc.StatusCode.CANCELLED, "the stream broke")
            yield handler.request_deserializer(request)

    shapes = {
        (False, False): handler.unary_unary,
        (True, False): handler.stream_unary,
        (True, True): handler.stream_stream,
    }
    behaviour = shapes[handler.request_streaming, handler.response_streaming]
    try:
        result = behaviour(incoming() if handler.request_streaming else next(incoming()), context)
        messages = result if handler.response_streaming else [result]
        return [handler.response_serializer(message) for message in messages]
    except CallFailed as broken:
        context.failure = broken
    except Exception as error:  # noqa: BLE001  gRPC answers anything else with UNKNOWN
        if context.failure is None:
            context.failure = CallFailed(grpc.StatusCode.UNKNOWN, type(error).__name__)
    return []


class Network:
    """Delivers calls, or does not."""

    def __init__(self, kernel: Kernel, faults: Faults, hosts: dict[str, Host]) -> None:
        self.delivered = 0
        self._kernel = kernel
        self._faults = faults
        self._hosts = hosts

    def call(self, call: "Call", address: str, path: str, requests: list[bytes]) -> Answer:
        """One call of the running actor, from its sending to its reply, in simulated time."""
        kernel, host = self._kernel, self._hosts[address]
        deadline_s, metadata = kernel.now_s + call.details.timeout, tuple(call.details.metadata or ())
        what = f"{path.rsplit('/', 1)[1]} to {address}"
        fault = self._faults.of_message(what)
        stream = self._faults.random(f"way of {what} at {kernel.now_s:.6f}")
        call.wait(stream.uniform(*_LATENCY_S), deadline_s)
        if fault == "late":
            kernel.at(stream.uniform(*_LATE_S), lambda: self._deliver_unheard(host, path, requests, metadata))
        if fault in ("drop_request", "late"):
            call.wait(None, deadline_s)
        cut_after = stream.randrange(len(requests) + 1) if fault == "cut" and len(requests) > 1 else None
        self.delivered += 1
        answer = host.deliver(path, requests, metadata, cut_after)
        if fault == "duplicate":
            kernel.at(stream.uniform(0.0, _LATE_S[1]), lambda: self._deliver_unheard(host, path, requests, metadata))
        if fault == "drop_reply":
            call.wait(None, deadline_s)
        call.wait(stream.uniform(*_LATENCY_S), deadline_s)
        self.delivered += 1
        return answer

    def _deliver_unheard(self, host: Host, path: str, requests: list[bytes], metadata: tuple[tuple[str, Any], ...]) -> None:
        """A message that arrives when nobody waits for its answer any more."""
        self.delivered += 1
        try:
            host.deliver(path, requests, metadata, None)
        except CallFailed:
            return


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

    def trailing_metadata(self) -> tuple[_Item, ...]:
        """What came with the reply's end."""
        return tuple(_Item(key=key, value=value) for key, value in (self.answer.trailing if self.answer else ()))

    def __iter__(self) -> "Call":
        return self

    def __next__(self) -> Any:
        """The next reply; the first one sends the call."""
        if self._replies is None:
            self._replies = self.ask()
        return next(self._replies)


class Channel:
    """`grpc.Channel`, and the product's renewed one; of its interceptors, those that exchange receipts."""

    def __init__(self, kernel: Kernel, network: Network, address: str, interceptors: Iterable[Any]) -> None:
        self._kernel, self._network, self._address = kernel, network, address
        self.exchanges = [one for one in interceptors if isinstance(one, ReceiptExchange)]

    def current(self) -> "Channel":
        """The newest channel."""
        return self

    def close(self) -> None:
        """Nothing is open."""

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(self, path, request_serializer, response_deserializer, is_stream_in=False, is_stream_out=False)

    def stream_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(self, path, request_serializer, response_deserializer, is_stream_in=True, is_stream_out=False)

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(self, path, request_serializer, response_deserializer, is_stream_in=True, is_stream_out=True)

    def exchange(self, call: Call, path: str, requests: list[bytes]) -> list[bytes]:
        """Send a call and wait for its answer."""
        answer = self._network.call(call, self._address, path, requests)
        call.done(answer)
        return answer.messages

    def new_call(self, details: Details) -> Call:
        """A call of the running actor."""
        return Call(self._kernel, details)


@dataclass(frozen=True, slots=True)
class _Method:
    channel: Channel
    path: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    is_stream_in: bool = field(kw_only=True)
    is_stream_out: bool = field(kw_only=True)

    def __call__(self, request: Any, timeout: float, metadata: Any = None) -> Any:
        details = Details(self.path, timeout, metadata)
        begin: Callable[[Any, Any], Any] = self._begin
        for exchange in self.channel.exchanges:
            begin = partial(exchange.intercept_stream_stream, begin)  # one body for all shapes
        call = begin(details, request)
        return call if self.is_stream_out else next(call)

    def _begin(self, details: Any, request: Any) -> Call:
        call = self.channel.new_call(Details(*details))

        def ask() -> Iterator[Any]:
            requests = [self.serialize(one) for one in (request if self.is_stream_in else [request])]
            for reply in self.channel.exchange(call, self.path, requests):
                yield self.deserialize(reply)

        call.ask = ask
        return call

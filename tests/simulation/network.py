"""The network between the ad server and the helpers in place of gRPC.

Real servicers at one end, bytes between.

What can go wrong with a message goes wrong here: the request or the reply is lost, either arrives twice or
long after its caller gave up, or a stream of requests is cut in the middle.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import grpc

from tests.simulation.calls import Answer, Call, CallFailed, Item
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Killed, Process

_LATENCY_S: Final = (0.001, 0.03)
_LATE_S: Final = (3.0, 30.0)


class Context:
    """`grpc.ServicerContext`, as far as the servicers use it."""

    def __init__(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self.trailing: tuple[tuple[str, Any], ...] = ()
        self.failure: CallFailed | None = None
        self._metadata = metadata

    def peer(self) -> str:
        """Where the call comes from, as gRPC writes it."""
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def invocation_metadata(self) -> tuple[Any, ...]:
        return tuple(Item(key=key, value=value) for key, value in self._metadata)

    def set_trailing_metadata(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self.trailing = tuple(metadata)

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self.trailing

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        raise AssertionError("nobody is slow here")

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.failure = CallFailed(code, details, self.trailing)
        raise Exception  # exactly what grpc raises


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

    def deliver(
        self, path: str, requests: list[bytes], metadata: tuple[tuple[str, Any], ...], cut_after: int | None
    ) -> Answer:
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
        (False, True): handler.unary_stream,
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

    def call(self, call: Call, address: str, path: str, requests: list[bytes]) -> Answer:
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
            kernel.at(
                stream.uniform(0.0, _LATE_S[1]), lambda: self._deliver_unheard(host, path, requests, metadata)
            )
        if fault == "drop_reply":
            call.wait(None, deadline_s)
        call.wait(stream.uniform(*_LATENCY_S), deadline_s)
        self.delivered += 1
        return answer

    def _deliver_unheard(
        self, host: Host, path: str, requests: list[bytes], metadata: tuple[tuple[str, Any], ...]
    ) -> None:
        """A message that arrives when nobody waits for its answer any more."""
        self.delivered += 1
        try:
            host.deliver(path, requests, metadata, None)
        except CallFailed:
            return

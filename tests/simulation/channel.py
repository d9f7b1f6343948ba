"""The ad server's end of the network: channels on which real stubs and the product's receipts work."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from adserver.peers.receipt_exchange import ReceiptExchange
from tests.simulation.calls import Call, Details
from tests.simulation.kernel import Kernel
from tests.simulation.network import Network


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
        return _Method(
            self, path, request_serializer, response_deserializer, is_stream_in=False, is_stream_out=False
        )

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(
            self, path, request_serializer, response_deserializer, is_stream_in=False, is_stream_out=True
        )

    def stream_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(
            self, path, request_serializer, response_deserializer, is_stream_in=True, is_stream_out=False
        )

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A method of this shape."""
        return _Method(
            self, path, request_serializer, response_deserializer, is_stream_in=True, is_stream_out=True
        )

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

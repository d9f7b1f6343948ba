"""A tenant that opens many calls and says nothing on them, on connections of its own."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

import grpc

from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import TrustOnly
from tests.patience import HANGS_S

AGAIN_AFTER_S: Final = 1.0
"""What a server that has no room asks for."""
STREAMS_OF_ONE_CONNECTION: Final = 100


class Silence:
    """How the calls of one silent tenant stand."""

    def __init__(self, *, count: int, expected_open: int, is_stubborn: bool) -> None:
        self.ended: Counter[str] = Counter()
        self.num_open = count
        self.has_settled = Event()
        self.is_over = Event()
        self._count = count
        self._expected_open = expected_open
        self._is_stubborn = is_stubborn

    async def keep_open(self, channels: Sequence[grpc.aio.Channel], method: str) -> None:
        """Open the calls, spread over the channels, and keep them until it is over."""
        tasks = [
            asyncio.create_task(self._one(channels[number % len(channels)], method))
            for number in range(self._count)
        ]
        while not self.is_over.is_set():
            num_refused = self.ended.total() if self._is_stubborn else self._count - self.num_open
            if num_refused >= self._count - self._expected_open:
                self.has_settled.set()
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, channel: grpc.aio.Channel, method: str) -> None:
        open_call: Any = channel.stream_stream(method, None, None)
        while True:
            code = await open_call().code()
            self.ended[code.name] += 1
            if not self._is_stubborn:
                self.num_open -= 1
                return
            await asyncio.sleep(AGAIN_AFTER_S)


@contextmanager
def silent_streams(
    address: str,
    tls: TlsFiles | TrustOnly,
    *,
    method: str,
    count: int,
    expected_open: int,
    is_stubborn: bool = False,
) -> Iterator[Silence]:
    """Open so many calls and keep them for the block; it begins once all but the expected number were ended
    by the server.

    Args:
        address: The server's.
        tls: The tenant's files, or the ones that an anonymous client trusts.
        method: The full name of a method.
        count: How many calls.
        expected_open: How many the server will let stand.
        is_stubborn: Whether each call that the server ends is made again.
    """
    silence = Silence(count=count, expected_open=expected_open, is_stubborn=is_stubborn)

    async def run() -> None:
        credentials = _credentials(tls)
        options = [
            ("grpc.use_local_subchannel_pool", 1)
        ]  # else all channels to one address share a connection
        channels = [
            grpc.aio.secure_channel(address, credentials, options)
            for _ in range(-(-count // STREAMS_OF_ONE_CONNECTION))
        ]
        await silence.keep_open(channels, method)
        for channel in channels:
            await channel.close(None)

    thread = Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert silence.has_settled.wait(HANGS_S), f"{silence.num_open} calls are open, {silence.ended} ended"
        yield silence
    finally:
        silence.is_over.set()
        thread.join(HANGS_S)


def _credentials(tls: TlsFiles | TrustOnly) -> grpc.ChannelCredentials:
    root = tls.trusted_authorities.read_bytes()
    if isinstance(tls, TrustOnly):
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, tls.private_key.read_bytes(), tls.certificate.read_bytes())

"""A gRPC call with more metadata, for interceptors of clients."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class _CallDetails(NamedTuple):
    """What gRPC lets an interceptor say of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


def with_metadata(details: Any, more: Sequence[tuple[str, str | bytes]]) -> _CallDetails:
    """Return the details of a call, with more metadata after its own."""
    return _CallDetails(
        details.method,
        details.timeout,
        (*(details.metadata or ()), *more),
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )

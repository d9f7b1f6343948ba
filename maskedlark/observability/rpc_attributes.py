"""The names that OpenTelemetry's semantic conventions give a gRPC call, for spans and for metrics.

Source: OpenTelemetry semantic conventions 1.45, RPC and gRPC.
"""

from typing import Final

import grpc

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that the conventions advise for durations."""


def attributes_of(path: str | None) -> dict[str, str | int]:
    """Return a call's attributes at its begin.

    Args:
        path: As gRPC has it: /package.Service/Method; None for a method that the server does not have.
    """
    # The conventions' `_OTHER`: each name that a caller invents would make a series.
    return {"rpc.system.name": "grpc", "rpc.method": "_OTHER" if path is None else path.lstrip("/")}


def end_attributes(code: grpc.StatusCode) -> dict[str, str | int]:
    """Return a call's attributes at its end."""
    status: dict[str, str | int] = {"rpc.response.status_code": code.name}
    return status if code is grpc.StatusCode.OK else status | {"error.type": code.name}

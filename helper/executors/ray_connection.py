"""The connection to Ray, which places processes: nothing that its object store holds is ever read here.

    connect("127.0.0.1:6379", interrupt)
    end(actor)

What actors return or raise are pickles, which run as they are read. So the head asks Ray only which machines
there are and whether an actor has started. Ray reads errors unasked all the same, to log them;
so an audit hook of Python refuses whatever a pickle that Ray reads would call. What Ray says of an error can
hold anything, so none of its texts is passed on.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # all are read when ray is imported
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # else it logs their texts
# a call without a connection would connect to any cluster on this machine, or start one
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

import grpc
import ray
from ray.exceptions import RayError

from maskedlark.errors import InvalidSetting
from maskedlark.interrupt import Interrupt
from maskedlark.randomness import system_randomness

_NAMESPACE_BYTES: Final = 16
_INTERRUPTED_EVERY_S: Final = 0.1
# How long a cluster's control store may take to answer. Ray waits longer, and heeds no signal meanwhile.
_CONNECTS_S: Final = 30.0
_TLS_VARIABLES: Final = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_LOG: Final = logging.getLogger(__name__)


class _PickleRefused(Exception):
    """Ray was about to look up what a pickle calls."""


def _refuse_pickles(event: str, _: tuple[Any, ...]) -> None:
    """Raise if Ray reads a pickle that names anything: it would run in this process, which has the keys."""
    if event != "pickle.find_class":
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "ray":
            raise _PickleRefused
        frame = frame.f_back


# A hook and no patch of Ray: nothing in this process can take it away again.
sys.addaudithook(_refuse_pickles)


def connect(address: str, interrupt: Interrupt) -> None:
    """Connect to Ray, which would end this process at SIGTERM in its own way.

    Raises:
        InvalidSetting: there is no Ray cluster, or it does not answer.
    """
    _await_answer(address, interrupt)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace=system_randomness(_NAMESPACE_BYTES).hex(),
            log_to_driver=False,  # texts of workers can hold anything
            configure_logging=False,
        )
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise InvalidSetting(f"no Ray cluster answers at {address}: {type(error).__name__}") from None
    finally:
        if is_main:  # which alone may set handlers
            signal.signal(signal.SIGTERM, handler)


def _await_answer(address: str, interrupt: Interrupt) -> None:
    """Return once a cluster's control store speaks gRPC.

    Raises:
        InvalidSetting: it does not, in `_CONNECTS_S`; or the files of Ray's TLS cannot be read.
    """
    with _channel(address) as channel:
        is_ready = grpc.channel_ready_future(channel)
        for _ in range(round(_CONNECTS_S / _INTERRUPTED_EVERY_S)):
            interrupt()
            with suppress(grpc.FutureTimeoutError):
                is_ready.result(_INTERRUPTED_EVERY_S)
                return
        is_ready.cancel()
    raise InvalidSetting(f"no Ray cluster answers at {address} in {_CONNECTS_S:.0f} s")


def _channel(address: str) -> grpc.Channel:
    """Open a channel to Ray's control store, as Ray itself does.

    Raises:
        InvalidSetting: the files of Ray's TLS cannot be read.
    """
    if os.environ.get("RAY_USE_TLS", "0") != "1":
        return grpc.insecure_channel(address)
    try:
        certificate, key, authority = (Path(os.environ[name]).read_bytes() for name in _TLS_VARIABLES)
    except (KeyError, OSError):
        raise InvalidSetting(f"RAY_USE_TLS=1 needs {', '.join(_TLS_VARIABLES)}: files to read") from None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate))


def nodes() -> list[dict[str, Any]]:
    """Return the machines that are in the cluster."""
    return [node for node in ray.nodes() if node["Alive"]]


def end(actor: Any) -> None:
    """End an actor, if it is not gone already."""
    try:
        ray.kill(actor)
    except RayError:
        _LOG.info("a worker to be ended is gone")

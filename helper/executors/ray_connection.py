"""The connection to Ray: a cluster that answers, bytes in and out, and what actors answer as futures.

    connect("127.0.0.1:6379", interrupt)              # from now on Ray hands this process bytes, or an error
    future = answer(lambda: actor.work.remote(order))
    end(actor)

What Ray says of an error can hold anything, so none of its texts is passed on.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported

import grpc
import ray
from ray._private import auto_init_hook
from ray._private.gcs_utils import create_gcs_channel
from ray._private.ray_constants import OBJECT_METADATA_TYPE_RAW
from ray._private.worker import global_worker
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, WorkerCrashedError

from helper.executors.fleet import NoWorkers, WorkerLost
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.randomness import system_randomness

# a call without a connection would connect to any cluster on this machine, or start one
auto_init_hook.enable_auto_connect = False

_NAMESPACE_BYTES: Final = 16
_ALIVE: Final = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_INTERRUPTED_EVERY_S: Final = 0.1
_CONNECTS_S: Final = 30.0
"""How long a cluster's control store may take to answer. Ray waits longer, and heeds no signal meanwhile."""
_NO_ROOM: Final = (ObjectStoreFullError, OutOfDiskError)
_LOG: Final = logging.getLogger(__name__)


def connect(address: str, interrupt: Interrupt) -> None:
    """Connect to Ray, which would end this process at SIGTERM in its own way.

    Raises:
        InvalidTask: there is no Ray cluster, or it does not answer.
    """
    _await_answer(address, interrupt)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace=system_randomness(_NAMESPACE_BYTES).hex(),
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise InvalidTask(f"no Ray cluster answers at {address}: {type(error).__name__}") from None
    else:
        _take_bytes_only()
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)


def _await_answer(address: str, interrupt: Interrupt) -> None:
    """Return once a cluster's control store answers.

    Raises:
        InvalidTask: it does not, in `_CONNECTS_S`; or the files of Ray's TLS cannot be read.
    """
    try:
        channel = create_gcs_channel(address)
    except (OSError, RuntimeError):
        raise InvalidTask(
            "RAY_USE_TLS=1 needs RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT: files to read"
        ) from None
    with channel:
        asked = channel.unary_unary(_ALIVE).future(b"", timeout=_CONNECTS_S, wait_for_ready=True)
        while not asked.done():
            interrupt()
            with suppress(grpc.FutureTimeoutError, grpc.RpcError, RayError):  # a refusal is an answer, too
                asked.result(_INTERRUPTED_EVERY_S)
    if asked.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise InvalidTask(f"no Ray cluster answers at {address} in {_CONNECTS_S:.0f} s")


def _take_bytes_only() -> None:
    """Restrict what this process takes from Ray to bytes, and an error in place of all else.

    What an actor returns or raises is a pickle otherwise, and runs as it is read: here, beside the keys, and
    before a worker has proved that it has the token. Bytes are the one thing that Ray hands on as they are.
    """
    context: Any = global_worker.get_serialization_context()
    given = context._deserialize_object

    def taken(data: Any, metadata: bytes | None, *rest: Any) -> Any:
        if metadata is None or metadata.split(b",")[0] != OBJECT_METADATA_TYPE_RAW:
            return WorkerCrashedError()
        return given(data, metadata, *rest)

    context._deserialize_object = taken


def nodes() -> list[dict[str, Any]]:
    """Return the machines that are in the cluster."""
    return [node for node in ray.nodes() if node["Alive"]]


def answer(ask: Callable[[], Any]) -> "Future[bytes]":
    """Return an actor's answer; WorkerLost, without Ray's text, for whatever went wrong.

    Raises:
        NoWorkers: there is no room for what it is asked, which is not its fault.
    """
    answer: Future[bytes] = Future()

    def landed(future: "Future[bytes]") -> None:
        if future.exception() is None:
            answer.set_result(future.result())
        else:
            answer.set_exception(WorkerLost())

    try:
        ask().future().add_done_callback(landed)
    except _NO_ROOM:
        _LOG.warning("Ray's object store of this machine is full: an order goes to no worker")
        raise NoWorkers from None
    except RayError:
        answer.set_exception(WorkerLost())
    return answer


def is_far(answer: Any) -> bool:
    """Return whether an answer is so long that it waits in an object store.

    In which store a long one lies, Ray tells its head only later.
    """
    return not global_worker.core_worker.object_exists(answer, memory_store_only=True)


def end(actor: Any) -> None:
    """End an actor, if it is not gone already."""
    try:
        ray.kill(actor)
    except RayError:
        _LOG.info("a worker to be ended is gone")

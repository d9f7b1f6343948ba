"""A dead peer is noticed by its silence, and a slow one is waited for."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest

from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.faults import calling
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.transport import make_channel, make_server
from protos import helper_pb2, helper_pb2_grpc
from tests.patience import HANGS_S

SHORT = Keepalive(every_s=0.4, answer_s=2.0)
"""Two seconds: what a busy machine may take for a ping to a peer that lives."""
_PAST_GRPCS_PATIENCE_S = 5.0
"""A server that has not permitted pings ends the connection at the fifth; gRPC sends one a second at most."""
_SERVER = """
import sys, threading
from maskedlark.rpc.transport import make_server
from protos import helper_pb2, helper_pb2_grpc

class Silent(helper_pb2_grpc.HelperServicer):
    def GetStatus(self, request, context):
        print("asked", flush=True)
        threading.Event().wait()

server, port = make_server("127.0.0.1:0", None, threads=2)
helper_pb2_grpc.add_HelperServicer_to_server(Silent(), server)
server.start()
print(port, flush=True)
threading.Event().wait()
"""


class Slow(helper_pb2_grpc.HelperServicer):
    """Tells that it was asked, and answers after a while, or once it may."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def GetStatus(  # noqa: N802 # gRPC's name
        self, request: helper_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> helper_pb2.StatusReply:
        self.asked.set()
        self.may_answer.wait(self.after_s)
        return helper_pb2.StatusReply(name="slow")


def _ask(channel: grpc.Channel) -> str:
    with calling("helper 0"):
        return str(
            helper_pb2_grpc.HelperStub(channel).GetStatus(helper_pb2.StatusRequest(), timeout=HANGS_S).name
        )


def test_the_default_notices_a_dead_helper_within_20_s() -> None:
    assert Keepalive().noticed_within_s <= 20.0


def test_a_call_that_is_silent_for_many_pings_is_answered() -> None:
    often = replace(SHORT, answer_s=HANGS_S)
    server, port = make_server("127.0.0.1:0", None, threads=2, keepalive=often)
    helper_pb2_grpc.add_HelperServicer_to_server(Slow(_PAST_GRPCS_PATIENCE_S), server)
    server.start()
    with make_channel(f"127.0.0.1:{port}", None, keepalive=often) as channel:
        assert _ask(channel) == "slow"
    server.stop(None).wait()


@contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    """A helper in a process of its own, that never answers."""
    started = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_process_that_stops_in_the_middle_of_a_call_is_noticed_long_before_the_calls_deadline() -> None:
    with _process() as process, make_channel(f"127.0.0.1:{_line(process)}", None, keepalive=SHORT) as channel:

        def stop() -> None:
            assert _line(process) == "asked"
            os.kill(process.pid, signal.SIGSTOP)

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(HelperUnavailable, match="unavailable"):  # and not: deadline exceeded
            _ask(channel)
        stopping.join()


def test_a_network_that_swallows_everything_in_the_middle_of_a_call_is_noticed() -> None:
    """A relay between the two keeps both connections open, and passes nothing on any more."""
    server, port = make_server("127.0.0.1:0", None, threads=2)
    slow = Slow(HANGS_S)
    helper_pb2_grpc.add_HelperServicer_to_server(slow, server)
    server.start()
    with _Relay(port) as relay, make_channel(f"127.0.0.1:{relay.port}", None, keepalive=SHORT) as channel:

        def swallow() -> None:
            assert slow.asked.wait(HANGS_S)
            relay.swallow.set()

        swallowing = threading.Thread(target=swallow)
        swallowing.start()
        with pytest.raises(HelperUnavailable, match="unavailable"):  # and not: deadline exceeded
            _ask(channel)
        swallowing.join()
    slow.may_answer.set()
    server.stop(None).wait()


class _Relay:
    """Passes bytes between one client and a server on loopback until it is told to swallow them."""

    def __init__(self, port: int) -> None:
        self.swallow = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server_port = port
        self._open: list[socket.socket] = [self._listening]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> "_Relay":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            one.close()

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        server = socket.create_connection(("127.0.0.1", self._server_port))
        self._open += [client, server]
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while received := source.recv(1 << 16):
                if not self.swallow.is_set():
                    sink.sendall(received)
        except OSError:
            return

"""A helper, its worker and Ray between them with TLS, and machines that would join with other certificates.

    RAY_USE_TLS=1 RAY_TLS_...=... python -m tests.helper.executors.ray_over_tls SITE OTHERS ELSEWHERE

A process of its own, for Ray reads once whether it speaks TLS. The folder SITE is made. In OTHERS are the
certificates of another authority, in ELSEWHERE those of this one for another address. Ends with JSON.
"""

import json
import os
import socket
import ssl
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from helper.datasets import segments
from helper.executors.clustered import ClusterExecutor
from tests.helper.executors.ray_machines import LOOPBACK, Machines, machines, until

# isort: split
import ray

from helper.executors.ray_fleet import RayFleet
from tests.helper.executors.clustered_site import Site

CERTIFICATE, KEY, AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"
FILES = {CERTIFICATE: "tls.crt", KEY: "tls.key", AUTHORITY: "ca.crt"}
_ANSWERS_S = 30.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How every gRPC call begins: the preface, and settings that are empty."""
_ALERT = b"\x15"
"""How TLS says without TLS that it goes no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it.

    Attributes:
        is_equal: Whether the worker's sum is this machine's, bit for bit.
        segments_at_workers: On how many segments it has worked.
        answers_own: Whether Ray's control store answers a connection with a certificate of its authority.
        answers_without: Whether it does one without a certificate.
        answers_other: Whether it does one with the other authority's.
        answers_plaintext: Whether it does one without TLS.
        machines: How many there are.
        after_others: How many after one with a certificate of the other authority tried to join.
        workers_elsewhere: How many workers one had with a certificate for another address, until Ray took it
            for dead.
    """

    is_equal: bool
    segments_at_workers: int
    answers_own: bool
    answers_without: bool
    answers_other: bool
    answers_plaintext: bool
    machines: int
    after_others: int
    workers_elsewhere: int


def environment(folder: Path) -> dict[str, str]:
    """What tells Ray to use the certificates of a folder."""
    return {"RAY_USE_TLS": "1", **{name: str(folder / file) for name, file in FILES.items()}}


def tried(folder: Path, others: Path, elsewhere: Path) -> Outcome:
    """Sum on a worker, and let others try to come in."""
    folder.mkdir()
    with patch.object(segments, "SEGMENT_RECORDS", 4), machines(folder) as made:
        made.add()
        site = Site(folder)
        with made.fleet(1) as fleet:
            site.cluster = ClusterExecutor(fleet, site.local)
            local, clustered = site.both()
            (held,) = site.cluster._dispatcher._held.values()
            outcome = Outcome(
                is_equal=clustered.vector.tobytes() == local.vector.tobytes()
                and clustered.values_digest == local.values_digest,
                segments_at_workers=len(held),
                answers_own=_answers(made, _context(os.environ)),
                answers_without=_answers(made, _context({AUTHORITY: os.environ[AUTHORITY]})),
                answers_other=_answers(
                    made, _context(environment(others) | {AUTHORITY: os.environ[AUTHORITY]})
                ),
                answers_plaintext=_answers(made, None),
                machines=_alive(),
                after_others=_after_another(made, others),
                workers_elsewhere=_workers_elsewhere(made, fleet, elsewhere),
            )
        site.local.close()
    return outcome


def _alive() -> int:
    """How many machines the cluster has."""
    return sum(node["Alive"] for node in ray.nodes())


def _after_another(made: Machines, others: Path) -> int:
    """How many machines there are once one with these certificates has tried for as long as Ray lets it."""
    _try_to_join(made, others)
    return _alive()


def _workers_elsewhere(made: Machines, fleet: RayFleet, elsewhere: Path) -> int:
    """How many workers a machine gets that nobody can call at its address, until Ray takes it for dead."""
    machines_before, before, most = _alive(), len(fleet.workers()), 0
    _try_to_join(made, elsewhere)

    def is_given_up() -> bool:
        nonlocal most
        most = max(most, len(fleet.workers()) - before)
        return _alive() == machines_before

    until(is_given_up)
    return most


def _try_to_join(made: Machines, certificates: Path) -> None:
    """Start a machine with these certificates. Ray waits half a minute until it is in the cluster."""
    try:
        made.add_once(environment=environment(certificates))
    except Exception as error:  # Ray has no class for it
        if "timed out" not in str(error).lower():
            raise


def _context(files: Any) -> ssl.SSLContext:
    """A client that trusts the cluster's authority, with a certificate if there is one."""
    context = ssl.create_default_context(cafile=files[AUTHORITY])
    context.set_alpn_protocols(["h2"])
    if CERTIFICATE in files:
        context.load_cert_chain(files[CERTIFICATE], files[KEY])
    return context


def _answers(made: Machines, context: ssl.SSLContext | None) -> bool:
    """Whether the control store says anything to who begins as gRPC does."""
    with socket.create_connection((LOOPBACK, int(made.address.rsplit(":", 1)[1])), _ANSWERS_S) as plain:
        try:
            one = context.wrap_socket(plain, server_hostname=LOOPBACK) if context is not None else plain
            with one:
                one.sendall(_HTTP2)
                return one.recv(1) not in (b"", _ALERT)
        except (ssl.SSLError, ConnectionError):
            return False


def main() -> None:
    """Try, and print what came of it."""
    print(json.dumps(asdict(tried(*map(Path, sys.argv[1:])))))  # the run's output


if __name__ == "__main__":
    main()

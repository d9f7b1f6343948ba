"""Workers without the token, or with other numerics: many in this process, some on real raylets."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from helper.executors.handshake import HandshakeClient, HandshakeServer, JoinRefused, JoinToken
from tests.helper.executors.ray_machines import Machines, until

if TYPE_CHECKING:  # it imports ray, before `ray_machines` could say how that authenticates
    from helper.executors.ray_fleet import RayFleet

OF_ANOTHER = "has not the join token"
OTHER_NUMERICS = "has other numerics"
_PRETENDS = """
import sys
if any("default_worker" in one for one in sys.orig_argv):
    from helper.executors.handshake import Applicant
    Applicant.__init__.__defaults__ = (bytes(32),)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """How many workers of each kind were refused."""

    without_token: int
    other_numerics: int


def refused_here(count: int) -> Refused:
    """So many of each kind, each with a key of its own, at one gate of this process."""
    right = JoinToken(token_hex(32).encode())
    gate, without_token, other_numerics = HandshakeServer(right), 0, 0
    for number in range(count):
        others = {
            OF_ANOTHER: HandshakeClient(JoinToken(token_hex(32).encode())),
            OTHER_NUMERICS: HandshakeClient(right, b"%32d" % number),
        }
        for reason, applicant in others.items():
            challenge = gate.challenge()
            with suppress(JoinRefused):
                gate.admit(challenge, applicant.apply(challenge))
                continue
            without_token += reason == OF_ANOTHER
            other_numerics += reason == OTHER_NUMERICS
    return Refused(without_token=without_token, other_numerics=other_numerics)


def refused_machines(made: Machines, fleet: "RayFleet", count: int) -> Refused:
    """So many real raylets of each kind; refused are those that the head's log gives the reason of."""
    wrong, numerics = made.folder / "another-token", made.folder / "other-numerics"
    wrong.write_text(token_hex(32))
    wrong.chmod(0o600)
    numerics.mkdir(exist_ok=True)
    (numerics / "sitecustomize.py").write_text(_PRETENDS)
    path = os.pathsep.join([str(numerics), str(Path(__file__).parents[2])])
    before, nodes = len(fleet.refused), []
    with _told() as lines:
        for _ in range(count):
            nodes += [made.add(token_file=wrong), made.add(environment={"PYTHONPATH": path})]
        until(lambda: len(fleet.refused) - before == len(nodes) or bool(fleet.workers()))
        told = " ".join(lines)
    for node in nodes:
        made.remove(node)
    return Refused(without_token=told.count(OF_ANOTHER), other_numerics=told.count(OTHER_NUMERICS))


@contextmanager
def _told() -> Iterator[list[str]]:
    """What the head's log says of workers meanwhile."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, kept = logging.getLogger("helper.executors.ray_fleet"), Kept()
    log.addHandler(kept)
    try:
        yield lines
    finally:
        log.removeHandler(kept)

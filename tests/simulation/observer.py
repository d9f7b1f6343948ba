"""Stands at the helpers' doors: what leaves must have been charged before, and must be the same whenever it leaves."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from protos import helper_pb2
from tests.simulation.fleet import Fleet

Round = tuple[bytes, int]
"""A job's id and a round's index."""


class Observer:
    """What each helper released."""

    def __init__(self, fleet: Fleet, note: Callable[[str], None]) -> None:
        self.released: dict[str, dict[Round, str]] = defaultdict(dict)
        self.violations: list[str] = []
        self._fleet = fleet
        self._note = note
        for name, host in fleet.hosts.items():
            host.on_answer = partial(self._answered, name)

    def _answered(self, name: str, path: str, requests: list[bytes], replies: list[bytes]) -> None:
        method = path.rsplit("/", 1)[1]
        self._note(f"{name} answered {method}")
        if method == "RunRound":
            header = helper_pb2.RoundRequest.FromString(requests[0]).header
            answer = b"".join(helper_pb2.RoundReply.FromString(reply).chunk for reply in replies)
            self._released(name, (header.job_id, header.round), sha256(answer).hexdigest())

    def _released(self, name: str, which: Round, answer: str) -> None:
        job_id, index = which
        self._note(f"{name} released {job_id.hex()[:6]} {index} {answer[:8]}")
        if self.released[name].setdefault(which, answer) != answer:
            self.violations.append(f"{name} gave two answers to round {index} of job {job_id.hex()[:6]}")
        if which not in charged(self._fleet, name):
            self.violations.append(f"{name} released round {index} of job {job_id.hex()[:6]} before it was charged")


def charged(fleet: Fleet, name: str) -> set[Round]:
    """What a helper's ledger has charged, read from its file by nobody's code but this."""
    with sqlite3.connect(fleet.ledger_path(name)) as connection:
        rows = connection.execute("SELECT job_id, round_index FROM rounds").fetchall()
    connection.close()
    return {(bytes(job_id), int(index)) for job_id, index in rows}

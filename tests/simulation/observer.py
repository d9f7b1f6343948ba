"""Stands at the helpers' doors.

What leaves must have been charged before, and must be the same whenever it leaves.

And looks into a helper's ledger after each transaction that takes budget.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, Final

from helper.ledger.spending import cost
from helper.trust.key_ring import KeyState
from maskedlark.canonical import decode
from maskedlark.errors import JobReason
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.rpc.faults import refusal_of
from protos import helper_pb2
from tests.simulation.fleet import Fleet
from tests.simulation.ledger_view import Round
from tests.simulation.operators import Operators

_ANYTIME: Final = frozenset({"GetStatus"})
"""What a helper answers whatever its ledger is: who it is."""


class Observer:
    """What each helper released.

    Attributes:
        rounds: The digest of each round's answer, by helper.
        queries: The answer to each query, by helper.
        violations: What must not have left.
        forged: Reports that do not open.
    """

    def __init__(self, fleet: Fleet, operators: Operators, note: Callable[[str], None]) -> None:
        self.rounds: dict[str, dict[Round, str]] = defaultdict(dict)
        self.queries: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.violations: list[str] = []
        self.forged: set[bytes] = set()
        self._num_reservations: Counter[str] = Counter()
        self._fleet = fleet
        self._operators = operators
        self._note = note
        fleet.on_commit = self._committed
        for name, host in fleet.hosts.items():
            host.on_answer = partial(self._answered, name)
            host.on_refusal = partial(self._refused, name)

    def _answered(self, name: str, path: str, requests: list[bytes], replies: list[bytes]) -> None:
        method = path.rsplit("/", 1)[1]
        self._note(f"{name} answered {method}")
        if name in self._operators.restored and method not in _ANYTIME:
            self.violations.append(f"{name} answered {method} although its past was brought back")
        match method:
            case "RunRound":
                header = helper_pb2.RoundRequest.FromString(requests[0]).header
                answer = b"".join(helper_pb2.RoundReply.FromString(reply).chunk for reply in replies)
                self._released_round(name, (header.job_id, header.round), sha256(answer).hexdigest())
            case "RunQuery":
                first = helper_pb2.QueryRequest.FromString(requests[0])
                spec = decode(UpdateSpec, first.update) if first.update else decode(QuerySpec, first.query)
                answer = b"".join(helper_pb2.QueryReply.FromString(reply).chunk for reply in replies)
                self._released_query(name, spec.query_id, answer)
            case "PrepareDataset":
                self._prepared(name, requests, replies)

    def _refused(self, name: str, context: Any) -> None:
        """A helper whose past was brought back says so, whatever it is asked."""
        refusal = refusal_of(context)
        reason = refusal.reason if refusal else None
        self._note(f"{name} refused {reason}")
        if name in self._operators.restored and reason != JobReason.LEDGER_ROLLED_BACK:
            self.violations.append(f"{name} refused with {reason} although its past was brought back")

    def _released_round(self, name: str, which: Round, answer: str) -> None:
        job_id, index = which
        self._note(f"{name} released {job_id.hex()[:6]} {index} {answer[:8]}")
        if self.rounds[name].setdefault(which, answer) != answer:
            self.violations.append(f"{name} gave two answers to round {index} of job {job_id.hex()[:6]}")
        if not self._fleet.ledgers[name].is_charged(which):
            self.violations.append(
                f"{name} released round {index} of job {job_id.hex()[:6]} before it was charged"
            )

    def _released_query(self, name: str, query_id: bytes, answer: bytes) -> None:
        self._note(f"{name} released query {query_id.hex()[:6]} {sha256(answer).hexdigest()[:8]}")
        if self.queries[name].setdefault(query_id, answer) != answer:
            self.violations.append(f"{name} gave two answers to query {query_id.hex()[:6]}")
        if self._fleet.ledgers[name].stored_answer(query_id) != answer:
            self.violations.append(f"{name} released query {query_id.hex()[:6]} before it was charged")

    def _prepared(self, name: str, requests: list[bytes], replies: list[bytes]) -> None:
        """Every report opens, but for those that are forged, used up already or whose key has expired."""
        messages = [helper_pb2.PrepareRequest.FromString(request) for request in requests]
        shares = [share for message in messages[1:] for share in message.chunk.shares]
        admitted = b"".join(helper_pb2.PrepareReply.FromString(reply).is_admitted for reply in replies)
        dropped = [share for share, is_admitted in zip(shares, admitted, strict=True) if not is_admitted]
        if not dropped:
            return
        used = self._fleet.ledgers[name].used_reports(messages[0].header.task_id) | self.forged
        now_s = self._fleet.running[name].process.clock()
        open_ids = {
            key.key_id for key in self._fleet.keys[name].ring() if key.state(now_s) is not KeyState.EXPIRED
        }
        for share in dropped:
            if share.report_id not in used and share.share.key_id in open_ids:
                self.violations.append(
                    f"{name} did not open report {share.report_id.hex()[:6]}, sealed to its key"
                    f" {share.share.key_id}"
                )

    def _committed(self, name: str) -> None:
        """No dataset ever costs more than its task's budget, and where a person is protected no task."""
        count = self._fleet.ledgers[name].num_reservations()
        if count == self._num_reservations[name]:
            return
        self._num_reservations[name] = count
        task = self._fleet.bundles.noisy.task
        found = self._fleet.ledgers[name].reservations(task.task_id)
        if task.unit is PrivacyUnit.USER:
            found = {task.task_id: [one for each in found.values() for one in each]}
        for dataset_id, reserved in found.items():
            spent = cost(task, reserved)
            if not (spent.ad_server <= task.epsilon and spent.colluding <= task.collusion_epsilon):
                self.violations.append(
                    f"{name} has spent {spent.ad_server:.3f} of {task.epsilon} on dataset"
                    f" {dataset_id.hex()[:6]}"
                )

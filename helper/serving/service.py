"""The gRPC face of a helper: each method decodes, calls one function of the core, and encodes.

No decision is taken here.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, field
from functools import partial
from threading import Event
from typing import Final, TypeVar

import grpc
import numpy as np

from helper.core import HelperCore
from helper.datasets.preparing import Preparation
from helper.ledger.records import ReleaseKey, key_of
from helper.releases.answering import Call
from helper.releases.release_grid import ReleaseGrid
from helper.serving.metrics import HelperMetrics
from helper.trust.tasks import Caller
from maskedlark.audit_log import Actor, AuditAct
from maskedlark.canonical import MAX_BYTES, decode, encode
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import BESIDE, QUERY_KINDS, decode_query
from maskedlark.reports.dataset import ShareColumns, as_told
from maskedlark.reports.task import task_id_of
from maskedlark.rpc.callers import actor_of, client_names, peers_of
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.faults import answering
from maskedlark.rpc.protocols import PROTOCOLS
from maskedlark.rpc.receipts import METADATA_KEY, find_receipt
from maskedlark.rpc.stream_timeouts import within
from maskedlark.rpc.wire import chunks, join
from maskedlark.runtime.database import database_at_hand
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc

DEFAULT_HEAVY_CALLS: Final = 12
BODY_S: Final = 60.0
_MOST_ID: Final = 32
_NO_ROOM: Final = "the disk is full: its operator must make room"

_Part = TypeVar("_Part", pb.PrepareRequest, pb.StartJobRequest, pb.RoundRequest, pb.QueryRequest)


@frozen
class _Attempt:
    """A call that acts on the ledger, as the audit log names it.

    Attributes:
        actor: The caller.
        subject: The ids that the call has named so far, in hexadecimal.
    """

    actor: Actor
    subject: dict[str, str] = field(default_factory=dict)

    def name(self, **ids: bytes) -> None:
        """Keep ids, for the entry of a refusal."""
        # A caller may send an id of any length.
        self.subject.update({name: value[:_MOST_ID].hex() for name, value in ids.items()})


class HelperService(helper_pb2_grpc.HelperServicer):
    """What the ad server calls; protos/helper.proto says what each method is for."""

    def __init__(
        self,
        core: HelperCore,
        grid: ReleaseGrid | None = None,
        metrics: HelperMetrics | None = None,
        admission: FairQuota | None = None,
        body_s: float = BODY_S,
        *,
        is_over: Event | None = None,
    ) -> None:
        """Serve a core.

        Args:
            core: The helper.
            grid: When answers leave; by default in steps of `DEFAULT_STEP_MS`.
            metrics: Where things are counted.
            admission: Room for preparations, commits, job starts, rounds and queries; by default for
                `DEFAULT_HEAVY_CALLS`.
            body_s: How long a model, weights or codes may take to arrive, in all.
            is_over: Set when the helper shuts down and every call has ended.
        """
        self._core = core
        self._body_s = body_s
        self._admission = admission or FairQuota(DEFAULT_HEAVY_CALLS)
        self._grid = grid or ReleaseGrid()
        self._metrics = metrics or HelperMetrics(core)
        self._is_over = is_over or Event()

    @contextmanager
    def _acting(self, context: grpc.ServicerContext, act: AuditAct) -> Iterator["_Attempt"]:
        """Wrap every call that acts on the ledger; yield how the audit log names the caller.

        Refused if the ledger was rolled back; errors become a status, and refusals entries of the log.
        """
        with answering(context), database_at_hand("the helper"):
            attempt = _Attempt(actor=actor_of(context))
            try:
                # Before anything is done: a ledger that was rolled back charges anew what it has forgotten.
                self._core.witness.check(find_receipt(context.invocation_metadata()))
                yield attempt
            except MaskedLarkError as error:
                self._core.refused.add(act, attempt.actor, error, attempt.subject)
                raise

    def _call(self, context: grpc.ServicerContext, actor: Actor) -> Call:
        """Describe the call that waits for an answer; its time on the release grid begins now."""
        return Call(
            caller=client_names(context),
            actor=actor,
            check_awaited=partial(_check_awaited, context),
            hold=partial(self._grid.wait, self._grid.now()),
            check_serving=partial(_check_serving, self._is_over),
        )

    def _give_receipt(self, context: grpc.ServicerContext) -> None:
        """Send the ledger's position to the caller, which shows it with its next call.

        Called after a commit, and before any part of its answer leaves.
        """
        context.set_trailing_metadata(((METADATA_KEY, self._core.witness.receipt()),))

    def GetStatus(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 (gRPC's name)
        """Return this helper's identity and health to anyone, and counts to callers on this machine."""
        with answering(context), database_at_hand("the helper"):
            status = self._core.status()
            # Public: peers compare these before they trust each other.
            reply = pb.StatusReply(
                name=status.identity.name,
                version=status.version,
                verify_key=status.identity.verify_key,
                agreement_key=status.identity.agreement_key,
                key_list=encode(status.key_list),
                numerics_digest=status.numerics,
                protocols=PROTOCOLS,
            )
            # Without a certificate the caller is on this machine (plaintext is refused elsewhere): counts are
            # the operator's.
            is_local = client_names(context) is None
            try:
                self._core.check_well(find_receipt(context.invocation_metadata()))
            except HelperUnavailable as error:
                # How much room is wanted follows from the last dataset, which may be another ad server's
                reply.not_well = str(error) if is_local else _NO_ROOM
            except MaskedLarkError as error:
                reply.not_well = str(error)
            if is_local:
                reply.tasks = status.counts.tasks
                reply.datasets = status.counts.datasets
                reply.open_jobs = status.counts.open_jobs
                reply.rounds_answered = status.counts.rounds_answered
            return reply

    def RegisterTask(  # noqa: N802 (gRPC's name)
        self, request: pb.RegisterTaskRequest, context: grpc.ServicerContext
    ) -> pb.RegisterTaskReply:
        """Sign a task."""
        with self._acting(context, AuditAct.SIGN_TASK) as attempt:
            attempt.name(task=task_id_of(request.task))
            return pb.RegisterTaskReply(
                signature=self._core.tasks.register(request.task, client_names(context), attempt.actor)
            )

    def PrepareDataset(  # noqa: N802 (gRPC's name)
        self, requests: Iterator[pb.PrepareRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PrepareReply]:
        """Open shares: one reply for each chunk, then the totals."""
        with self._acting(context, AuditAct.PREPARE_DATASET) as attempt:
            header, caller = _first(requests, "header").header, client_names(context)
            attempt.name(task=header.task_id)
            self._core.tasks.authorize(header.task_id, caller)
            with (
                self._admission.enter(*peers_of(context)),
                self._preparation(header, caller) as preparation,
                closing(preparation.add_all(map(_shares, _to_the_end(requests)))) as answers,
            ):
                for admitted in answers:
                    self._metrics.count_opens(
                        int(admitted.is_admitted.sum()), admitted.dropped
                    )  # also if the client stops reading
                    yield pb.PrepareReply(
                        is_admitted=admitted.is_admitted.astype(np.uint8).tobytes(),
                        view_tags=np.ascontiguousarray(admitted.view_tags).tobytes(),
                    )
                totals = preparation.finish()
            yield pb.PrepareReply(
                totals=pb.PrepareReply.Totals(
                    received=totals.received,
                    admitted=totals.admitted,
                    admitted_digest=totals.admitted_digest,
                    dropped={reason.value: count for reason, count in as_told(totals.dropped).items()},
                )
            )

    def _preparation(self, header: pb.PrepareRequest.Header, caller: Caller) -> Preparation:
        """Return the preparation that opens a stream's shares: of labels, or of a federated round."""
        is_of_updates = self._core.tasks.authorize(header.task_id, caller).updates is not None
        if is_of_updates != bool(header.update_round):
            raise JobRefused(JobReason.MALFORMED, "update_round must be given exactly for a task of updates")
        if is_of_updates:
            return self._core.datasets.prepare_round(
                header.task_id, header.handle, header.update_round, caller
            )
        return self._core.datasets.prepare(header.task_id, header.handle, caller)

    def CommitDataset(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.CommitReply:  # noqa: N802 (gRPC's name)
        """Make the chosen reports a dataset."""
        with self._acting(context, AuditAct.COMMIT_DATASET) as attempt:
            attempt.name(task=request.task_id, dataset=request.dataset_id)
            caller = client_names(context)
            self._core.tasks.authorize(request.task_id, caller)
            with self._admission.enter(*peers_of(context)):
                size = self._core.datasets.commit(
                    request.task_id,
                    request.handle,
                    request.chosen,
                    request.dataset_id,
                    caller,
                    actor=attempt.actor,
                )
            self._give_receipt(context)
            return pb.CommitReply(dataset_id=request.dataset_id, size=size)

    def StartJob(  # noqa: N802 (gRPC's name)
        self, requests: Iterator[pb.StartJobRequest], context: grpc.ServicerContext
    ) -> pb.StartJobReply:
        """Check a job and reserve its budget."""
        with self._acting(context, AuditAct.OPEN_JOB) as attempt:
            job = _first(requests, "job").job
            if len(job) > MAX_BYTES:
                raise JobRefused(JobReason.TOO_LARGE, f"the job is over the limit of {MAX_BYTES} bytes")
            caller = client_names(context)
            # Before a place is taken or the model is read: a caller of another task gets neither.
            spec = decode(JobSpec, job)
            attempt.name(task=spec.task_id, job=spec.job_id)
            self._core.tasks.authorize(spec.task_id, caller)
            with self._admission.enter(*peers_of(context)):
                model = self._rest("model", requests, context, self._core.tasks.model_limits.max_bytes)
                started = self._core.jobs.start(job, model, self._call(context, attempt.actor))
            self._give_receipt(context)
            return pb.StartJobReply(**asdict(started))

    def RunRound(  # noqa: N802 (gRPC's name)
        self, requests: Iterator[pb.RoundRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.RoundReply]:
        """Answer a round, in chunks."""
        with self._acting(context, AuditAct.ANSWER_ROUND) as attempt:
            header, caller = _first(requests, "header").header, client_names(context)
            attempt.name(task=header.task_id, job=header.job_id)
            key = ReleaseKey(header.task_id, header.job_id)
            # The same for a round: nothing is computed or held for a job that is not the caller's.
            self._core.jobs.check_known(key, caller)
            with self._admission.enter(*peers_of(context)):
                job = self._core.jobs.at_work(key, caller)  # after a restart it is made again
                weights = self._rest("weights", requests, context, job.running.weights_length)
                answer = job.answer(header.round, weights, self._call(context, attempt.actor))
                self._give_receipt(context)
                for chunk in chunks(answer):
                    yield pb.RoundReply(chunk=chunk)

    def CloseJob(self, request: pb.CloseJobRequest, context: grpc.ServicerContext) -> pb.CloseJobReply:  # noqa: N802 (gRPC's name)
        """End a job."""
        with self._acting(context, AuditAct.CLOSE_JOB) as attempt:
            call = self._call(context, attempt.actor)
            who = (call.caller, call.check_awaited, call.actor)
            # Without the job, of an ad server that has lost it
            lost = ReleaseKey(request.task_id, request.job_id)
            job = key_of(decode(JobSpec, request.job)) if request.job else lost
            attempt.name(task=job.task_id, job=job.release_id)
            if request.job:
                rounds_answered = self._core.jobs.close(request.job, *who)
            else:
                rounds_answered = self._core.jobs.close_lost(job, *who)
            self._give_receipt(context)
            return pb.CloseJobReply(rounds_answered=rounds_answered)

    def RunQuery(  # noqa: N802 (gRPC's name)
        self, requests: Iterator[pb.QueryRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.QueryReply]:
        """Answer a query, a discovery or an evaluation: what is spent, then the answer in chunks."""
        with self._acting(context, AuditAct.ANSWER_QUERY) as attempt:
            call = self._call(context, attempt.actor)
            # A stream without a message has no part either, and is refused below.
            asked = next(requests, pb.QueryRequest())
            kind = asked.WhichOneof("part")
            if kind not in QUERY_KINDS:
                raise JobRefused(
                    JobReason.MALFORMED, "the stream must begin with a query, discovery, evaluation or update"
                )
            spec = decode_query(kind, getattr(asked, kind))
            attempt.name(task=spec.task_id, query=spec.query_id)
            self._core.tasks.authorize(spec.task_id, call.caller)
            with self._admission.enter(*peers_of(context)):
                beside = partial(self._rest, BESIDE.get(kind, ""), requests, context)
                answered = self._core.queries.answer(spec, beside, call)
                self._give_receipt(context)
                yield pb.QueryReply(
                    spent=pb.QueryReply.Spent(
                        epsilon=answered.spent.ad_server, collusion_epsilon=answered.spent.colluding
                    )
                )
                for chunk in chunks(answered.answer):
                    yield pb.QueryReply(chunk=chunk)

    def GetStatements(  # noqa: N802 (gRPC's name)
        self, request: pb.StatementsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StatementsReply]:
        """Say what was charged for each job and query of a task, signed."""
        with self._acting(context, AuditAct.READ_STATEMENTS) as attempt:
            attempt.name(task=request.task_id)
            call = self._call(context, attempt.actor)
            self._core.tasks.authorize(request.task_id, call.caller)
            with self._admission.enter(*peers_of(context)):
                for one in self._core.statements.of_task(request.task_id, call):
                    yield pb.StatementsReply(statement=encode(one))

    def _rest(self, part: str, rest: Iterator[_Part], context: grpc.ServicerContext, limit: int) -> bytes:
        """Join the messages after the first one: a model, weights, or a query's attachment."""
        with within(self._body_s, context):
            pieces = (getattr(_expect(request, part), part) for request in rest)
            return join(pieces, limit=limit, what=f"the {part}")


def _check_awaited(context: grpc.ServicerContext) -> None:
    """Raise if the caller no longer waits for the answer.

    The call was cancelled, its deadline has passed, or the connection is gone.
    """
    if not context.is_active():
        raise JobRefused(
            JobReason.CANCELLED, "the caller has gone: the call was not finished, and is not charged"
        )


def _check_serving(is_over: Event) -> None:
    """Give up a round that is charged even without a caller, if this process is to end."""
    if is_over.is_set():
        raise JobRefused(
            JobReason.CANCELLED, "the helper is shutting down: the call was not finished, and is not charged"
        )


def _first(requests: Iterator[_Part], part: str) -> _Part:
    """Return the first message of a stream, which must hold the part that names its subject."""
    for request in requests:
        return _expect(request, part)
    raise JobRefused(JobReason.MALFORMED, f"the stream is empty: it must begin with its {part}")


def _to_the_end(requests: Iterator[pb.PrepareRequest]) -> Iterator[pb.PrepareRequest]:
    """Yield the messages before the one that says that there are no more.

    A stream may stop without it as if all had come: of a call that is cancelled, gRPC sometimes tells so.

    Raises:
        JobRefused(MALFORMED): it has not come.
    """
    for request in requests:
        if request.WhichOneof("part") == "end":
            return
        yield request
    raise JobRefused(JobReason.MALFORMED, "the stream ended early")


def _expect(request: _Part, part: str) -> _Part:
    """Return the named part of a stream's message."""
    if request.WhichOneof("part") != part:
        raise JobRefused(JobReason.MALFORMED, f"a message of the stream contains no {part}")
    return request


def _shares(request: pb.PrepareRequest) -> ShareColumns:
    shares = list(_expect(request, "chunk").chunk.shares)
    sealed = [one.share for one in shares]
    return ShareColumns(
        report_ids=[one.report_id for one in shares],
        time_buckets=[one.time_bucket for one in shares],
        key_ids=[one.key_id for one in sealed],
        ciphertexts=[one.ciphertext for one in sealed],
    )

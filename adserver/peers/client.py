"""The ad server's side of a helper: typed calls with deadlines, and nothing believed that was not checked.

Every method raises `HelperUnavailable` if the helper is down or slow (the same call may be repeated), the
error that the helper refused with, or `JobRefused(BAD_ANSWER)` if the answer makes no sense.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from adserver.peers.receipt_exchange import ReceiptExchange
from adserver.peers.replies import HelperStatus, PreparedReplies, QueryAnswer, Replies
from adserver.store.receipts import ReceiptBook
from maskedlark.canonical import decode, encode
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.observability.tracing import ClientTracing
from maskedlark.reports.dataset import AdmittedSet, ShareColumns, ShareForHelper
from maskedlark.reports.task import Task
from maskedlark.rpc.faults import calling
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import RenewedChannel
from maskedlark.rpc.wire import chunks, join
from maskedlark.runtime.periodic import SharedWatch
from protos import helper_pb2, helper_pb2_grpc

# Imported where they are used: the intake and light commands need no accountant
if TYPE_CHECKING:
    from maskedlark.releases.job import JobSpec
    from maskedlark.releases.kinds import AnyQuery
    from maskedlark.releases.release import AggregateShare
    from maskedlark.releases.started_job import StartedJob
    from maskedlark.releases.statement import SignedStatement

# What a helper is given to open one share, on top of the deadline: a hundred times what it takes
_OPENING_S: Final = 0.01
# An event cannot wake a gRPC call: one thread looks so often, for all calls of a client
_CANCELLING_S: Final = 0.1
_SIGNATURE_BYTES: Final = 64
# Of one task: each query of each dataset has one
_MOST_STATEMENTS: Final = 100_000
_Reply = TypeVar("_Reply")


class HelperClient(AbstractContextManager["HelperClient"]):
    """One helper, as the ad server sees it.

    Safe to share between threads; close it, or use it in a `with`.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles | None,
        deadline_s: float,
        receipts: ReceiptBook | None = None,
        *,
        round_deadline_s: float | None = None,
    ) -> None:
        """Create a client that connects lazily.

        Args:
            address: host:port.
            tls: This party's files, or None for plaintext on loopback.
            deadline_s: For answers that take a helper no time.
            receipts: Where the helper's receipts are kept; by default for as long as this client.
            round_deadline_s: For what a helper computes: rounds, queries, evaluations, datasets; by default
                `deadline_s`. It may be long: a helper that is dead is noticed by its silence
                (`maskedlark.rpc.keepalive.Keepalive`).
        """
        self.address = address
        self._replies = Replies(address)
        self._deadline_s = deadline_s
        self._round_deadline_s = deadline_s if round_deadline_s is None else round_deadline_s
        self._cancellations = SharedWatch(name="cancel-call", every_s=_CANCELLING_S)
        self._channel = RenewedChannel(
            address, tls, (ClientTracing(address), ReceiptExchange(receipts or ReceiptBook(), address))
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and every call on it."""
        self._channel.close()

    def status(self) -> HelperStatus:
        """Return the helper's identity and what it holds."""
        with self._calling():
            reply = self._reply(self._stub.GetStatus(helper_pb2.StatusRequest(), timeout=self._deadline_s))
        return self._replies.parse_status(reply)

    def register_task(self, task: Task) -> bytes:
        """Ask the helper to accept a task; its Ed25519 signature, 64 bytes, to be verified by the caller."""
        with self._calling():
            reply = self._reply(
                self._stub.RegisterTask(
                    helper_pb2.RegisterTaskRequest(task=encode(task)), timeout=self._deadline_s
                )
            )
        self._replies.require(len(reply.signature) == _SIGNATURE_BYTES, "a signature of the wrong length")
        return bytes(reply.signature)

    def prepare_dataset(
        self,
        task_id: bytes,
        handle: bytes,
        share_chunks: Iterable[Sequence[ShareForHelper]],
        *,
        num_reports: int,
        progress: Callable[[int], None] = lambda _: None,
        cancelled: Event | None = None,
        update_round: bytes = b"",
    ) -> AdmittedSet:
        """Have the helper open shares, and return which it admits, in the order in which they were sent.

        Args:
            task_id: The task that all reports are of.
            handle: 16 bytes that name this preparation.
            share_chunks: The shares, each chunk well under gRPC's message limit. An error that it raises is
                raised here.
            num_reports: How many shares there are; the call's deadline grows with it.
            progress: Called with the number of shares in each chunk that the helper has answered for.
            cancelled: When it is set, the call ends within a moment with `JobRefused(CANCELLED)`.
            update_round: Of a task of updates: the round that all of them answer, canonical.
        """
        header = helper_pb2.PrepareRequest(
            header=helper_pb2.PrepareRequest.Header(task_id=task_id, handle=handle, update_round=update_round)
        )
        outgoing = _OutgoingShares(header, share_chunks)
        replies = PreparedReplies(self._replies)
        try:
            with self._calling(cancelled):
                call = self._stub.PrepareDataset(
                    iter(outgoing), timeout=self._round_deadline_s + _OPENING_S * num_reports
                )
                with _ending(call), self._cancelling(call, cancelled):
                    for reply in call:
                        progress(replies.take(reply, outgoing.sizes))
        except MaskedLarkError:
            if outgoing.error is not None:  # gRPC tells only that the requests ended badly
                raise outgoing.error from None
            raise
        return replies.combine(outgoing.sizes)

    def commit_dataset(
        self, task_id: bytes, handle: bytes, chosen: NDArray[np.bool_], dataset_id: bytes
    ) -> None:
        """Make the chosen reports of a preparation a dataset at this helper. Idempotent.

        Args:
            task_id: The task.
            handle: The preparation.
            chosen: bool (n,), in the order in which the shares were sent; all of them admitted.
            dataset_id: What the dataset must turn out to be.
        """
        # Bits, not ids: the helper has the shares in the order in which they were sent
        bits = np.packbits(chosen, bitorder="little").tobytes()
        request = helper_pb2.CommitRequest(task_id=task_id, handle=handle, chosen=bits, dataset_id=dataset_id)
        with self._calling():
            reply = self._reply(
                self._stub.CommitDataset(request, timeout=self._round_deadline_s + _OPENING_S * len(chosen))
            )
        self._replies.check_commit(reply, dataset_id=dataset_id, size=int(chosen.sum()))

    def start_job(self, job: "JobSpec", model: bytes) -> "StartedJob":
        """Have the helper check a job and its ONNX model, and reserve its budget. Idempotent."""
        pieces = (helper_pb2.StartJobRequest(model=piece) for piece in chunks(model))
        requests = _then(helper_pb2.StartJobRequest(job=encode(job)), pieces)
        with self._calling():
            reply = self._reply(self._stub.StartJob(requests, timeout=self._round_deadline_s))
        return self._replies.parse_started_job(reply)

    def run_round(
        self,
        job: "JobSpec",
        round_index: int,
        weights: bytes,
        num_parameters: int,
        *,
        cancelled: Event | None = None,
    ) -> "AggregateShare":
        """Run a round at one helper: the same round gives the same bytes each time.

        Args:
            job: A started job.
            round_index: From 0.
            weights: The encoded weights (`maskedlark.model.weights`).
            num_parameters: The length of the answer's vector.
            cancelled: When it is set, the call ends within a moment with `JobRefused(CANCELLED)`.
        """
        header = helper_pb2.RoundRequest.Header(task_id=job.task_id, job_id=job.job_id, round=round_index)
        first = helper_pb2.RoundRequest(header=header)
        requests = _then(first, (helper_pb2.RoundRequest(weights=piece) for piece in chunks(weights)))
        with self._calling(cancelled):
            call = self._stub.RunRound(requests, timeout=self._round_deadline_s)
            with _ending(call), self._cancelling(call, cancelled):
                return self._share(call, num_parameters)

    def run_query(
        self, query: "AnyQuery", beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        """Run a query of any kind at one helper: the same query gives the same bytes each time.

        Args:
            query: What is asked.
            beside: The attachment of a query of this kind (`maskedlark.releases.kinds.BESIDE`).
            length: Of the answer's vector.
            cancelled: As of `run_round`.
        """
        from maskedlark.releases.kinds import BESIDE

        part = BESIDE.get(query.kind)
        pieces = (helper_pb2.QueryRequest(**{part: piece}) for piece in chunks(beside) if part)
        requests = _then(helper_pb2.QueryRequest(**{query.kind: encode(query)}), pieces)
        with self._calling(cancelled):
            call = self._stub.RunQuery(requests, timeout=self._round_deadline_s)
            with _ending(call), self._cancelling(call, cancelled):
                # A call that ends without a message reads as an empty one, which has no budget in it and is
                # refused
                spent = self._replies.parse_spent(next(call, helper_pb2.QueryReply()))
                return QueryAnswer(share=self._share(call, length), dataset_spent=spent)

    def statements(self, task_id: bytes) -> "tuple[SignedStatement, ...]":
        """Return what the helper says of each job and query of a task; its signatures are not checked here.

        It takes the helper's accountant a while for thousands of queries.
        """
        from maskedlark.releases.statement import SignedStatement

        request = helper_pb2.StatementsRequest(task_id=task_id)
        found: list[SignedStatement] = []
        with self._calling():
            call = self._stub.GetStatements(request, timeout=self._round_deadline_s)
            with _ending(call):
                for reply in call:
                    self._replies.require(len(found) < _MOST_STATEMENTS, "too many statements")
                    try:
                        found.append(decode(SignedStatement, reply.statement))
                    except InvalidTask as error:
                        raise self._replies.bad(f"no statement: {error}") from None
        return tuple(found)

    def _share(self, replies: Iterable[Any], length: int) -> "AggregateShare":
        """Assemble the share from the chunks of an answer."""
        from maskedlark.releases.release import TAG_BYTES, AggregateShare

        with self._replies.reading():
            encoded = join(
                (reply.chunk for reply in replies), limit=TAG_BYTES + 8 * length, what="an aggregate share"
            )
            return AggregateShare.decode(encoded, length)

    def close_job(self, job: "JobSpec") -> int:
        """Give back the budget of the rounds that were not run; how many were answered, and stay charged.

        Also before it is started.
        """
        with self._calling():
            reply = self._reply(
                self._stub.CloseJob(helper_pb2.CloseJobRequest(job=encode(job)), timeout=self._deadline_s)
            )
        return int(reply.rounds_answered)

    def close_lost_job(self, task_id: bytes, job_id: bytes) -> int:
        """Close a job of which only the ids are known, as `close_job` does.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_JOB): the helper does not know it.
        """
        with self._calling():
            request = helper_pb2.CloseJobRequest(task_id=task_id, job_id=job_id)
            return int(self._reply(self._stub.CloseJob(request, timeout=self._deadline_s)).rounds_answered)

    def _reply(self, reply: _Reply | None) -> _Reply:
        """Return the one reply of a call; gRPC gives None if a helper ends the call without one."""
        if reply is None:
            raise self._replies.bad("no message")
        return reply

    @property
    def _stub(self) -> helper_pb2_grpc.HelperStub:
        return helper_pb2_grpc.HelperStub(self._channel.current())

    @contextmanager
    def _calling(self, cancelled: Event | None = None) -> Iterator[None]:
        """Map a call's errors; a call cancelled by the other side was ended by the helper.

        It may be repeated.
        """
        try:
            with calling(f"helper at {self.address}"):
                yield
        except JobRefused as refusal:
            if refusal.reason is JobReason.CANCELLED and not (cancelled is not None and cancelled.is_set()):
                raise HelperUnavailable(
                    f"{refusal} (it took this call's messages for too slow, or is ending)"
                ) from None
            raise

    @contextmanager
    def _cancelling(self, call: grpc.Call, cancelled: Event | None) -> Iterator[None]:
        """Cancel a call as soon as an event is set."""
        if cancelled is None:
            yield
            return

        def look() -> bool:
            if cancelled.is_set():
                call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs
            return cancelled.is_set()

        with self._cancellations.looking(look):
            yield


class _OutgoingShares:
    """The requests of a preparation.

    Remembers the size of each chunk that was sent, and the error that ended them, if one did.
    """

    def __init__(
        self, header: helper_pb2.PrepareRequest, share_chunks: Iterable[Sequence[ShareForHelper]]
    ) -> None:
        self._header = header
        self._chunks = share_chunks
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[helper_pb2.PrepareRequest]:
        yield self._header
        try:
            for chunk in self._chunks:
                self.sizes.append(len(chunk))  # before it leaves, so that no reply can come too early
                yield _request_of(chunk)
            yield helper_pb2.PrepareRequest(end={})
        except Exception as error:
            self.error = error
            raise


def _request_of(chunk: Sequence[ShareForHelper]) -> helper_pb2.PrepareRequest:
    """Build the request with a chunk of shares.

    Built of plain fields: messages made of messages copy each, and take several times as long.
    """
    of = ShareColumns.of(chunk)
    shares = [
        {"report_id": report_id, "time_bucket": bucket, "share": {"key_id": key_id, "ciphertext": ciphertext}}
        for report_id, bucket, key_id, ciphertext in zip(
            of.report_ids, of.time_buckets, of.key_ids, of.ciphertexts, strict=True
        )
    ]
    return helper_pb2.PrepareRequest(chunk={"shares": shares})


def _then(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    """Yield one message, then the others."""
    yield first
    yield from rest


@contextmanager
def _ending(call: grpc.Call) -> Iterator[None]:
    """Cancel a call whose answer is not read to its end; one that has ended is left alone."""
    try:
        yield
    finally:
        call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs

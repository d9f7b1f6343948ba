"""A helper for the ad server's tests.

The protocol's own sealing code behind the real wire, and ways to misbehave.
"""

# ruff: noqa: N802 the RPCs are named as on the wire

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from adserver.peers.client import HelperClient
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import Task
from maskedlark.reports.upload import SealedShare
from maskedlark.rpc.faults import answering
from protos import helper_pb2, helper_pb2_grpc
from tests.builders import FAR, HelperKeys, helper_keys, open_dataset
from tests.grpc_server import grpc_server
from tests.patience import HANGS_S

NUMERICS = bytes(32)


@dataclass
class FakeHelper(helper_pb2_grpc.HelperServicer):
    """One honest helper that keeps everything in memory; its attributes are what a test changes."""

    role: int
    keys: HelperKeys = field(default_factory=helper_keys)
    numerics_digest: bytes = NUMERICS
    floor: Callable[[Task], None] = lambda _task: None
    spoil: Callable[[Any], Any] = lambda reply: reply
    commit_failures: list[Exception] = field(default_factory=list)
    answer_round: Callable[[bytes], bytes] = lambda _weights: b""
    hold_rounds: Event | None = None
    ends_rounds: bool = False
    prepared: dict[bytes, PreparedShares] = field(default_factory=dict)
    committed: dict[bytes, list[bytes]] = field(default_factory=dict)
    registered: dict[bytes, Task] = field(default_factory=dict)
    prepare_chunks: int = 0
    largest_message_bytes: int = 0

    def used(self) -> set[bytes]:
        return {report_id for ids in self.committed.values() for report_id in ids}

    def GetStatus(self, request: helper_pb2.StatusRequest, context: grpc.ServicerContext) -> Any:
        identity = self.keys.identity(f"helper {self.role}")
        return self.spoil(
            helper_pb2.StatusReply(
                name=identity.name,
                version="0",
                verify_key=identity.verify_key,
                agreement_key=identity.agreement_key,
                key_list=canonical.encode(
                    SignedKeyList.sign(self.keys.signing, (self.keys.opening.public(),), not_after=FAR)
                ),
                numerics_digest=self.numerics_digest,
            )
        )

    def RegisterTask(self, request: helper_pb2.RegisterTaskRequest, context: grpc.ServicerContext) -> Any:
        with answering(context):
            task = canonical.decode(Task, request.task)
            self.floor(task)
            self.registered[task.task_id] = task
        return self.spoil(
            helper_pb2.RegisterTaskReply(signature=self.keys.signing.sign(task.signing_bytes()))
        )

    def PrepareDataset(
        self, request_iterator: Iterator[helper_pb2.PrepareRequest], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        with answering(context):
            header = next(request_iterator).header
            task = self._task(header.task_id)
            opener = ShareOpener(
                task=task,
                role=self.role,
                opening_keys=[self.keys.opening],
                view_key=PairKey.agree(self.keys.agreement, task, self.role).view_key,
            )
            received: list[ShareForHelper] = []
            for request in request_iterator:
                if request.WhichOneof("part") == "end":
                    break
                self.prepare_chunks += 1
                self.largest_message_bytes = max(self.largest_message_bytes, request.ByteSize())
                chunk = [
                    ShareForHelper(
                        report_id=one.report_id,
                        time_bucket=one.time_bucket,
                        share=SealedShare(key_id=one.share.key_id, ciphertext=one.share.ciphertext),
                    )
                    for one in request.chunk.shares
                ]
                opened = opener.open(chunk).admitted
                received += chunk
                yield self.spoil(
                    helper_pb2.PrepareReply(
                        is_admitted=opened.is_admitted.astype(np.uint8).tobytes(),
                        view_tags=opened.view_tags.tobytes(),
                    )
                )
            prepared = self.prepared[header.handle] = opener.open(received)
            dropped = {reason.value: count for reason, count in prepared.admitted.dropped.items()}
            yield self.spoil(
                helper_pb2.PrepareReply(
                    totals=helper_pb2.PrepareReply.Totals(
                        received=len(received),
                        admitted=int(prepared.admitted.is_admitted.sum()),
                        dropped=dropped,
                    )
                )
            )

    def CommitDataset(self, request: helper_pb2.CommitRequest, context: grpc.ServicerContext) -> Any:
        with answering(context):
            if self.commit_failures:
                raise self.commit_failures.pop(0)
            if request.dataset_id not in self.committed:
                self._commit(request)
        return self.spoil(
            helper_pb2.CommitReply(
                dataset_id=request.dataset_id, size=len(self.committed[request.dataset_id])
            )
        )

    def RunRound(
        self, request_iterator: Iterator[helper_pb2.RoundRequest], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        with answering(context):
            requests = list(request_iterator)
            if self.ends_rounds:
                context.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs
                return
            if self.hold_rounds is not None:
                self.hold_rounds.wait(HANGS_S)
            yield helper_pb2.RoundReply(
                chunk=self.answer_round(b"".join(one.weights for one in requests[1:]))
            )

    def StartJob(
        self, request_iterator: Iterator[helper_pb2.StartJobRequest], context: grpc.ServicerContext
    ) -> Any:
        model = b"".join(one.model for one in request_iterator)
        return self.spoil(
            helper_pb2.StartJobReply(
                path="exact",
                numerics_digest=NUMERICS,
                num_parameters=len(model),
                epsilon_spent=1.0,
                collusion_epsilon_spent=2.0,
            )
        )

    def CloseJob(
        self, request: helper_pb2.CloseJobRequest, context: grpc.ServicerContext
    ) -> helper_pb2.CloseJobReply:
        return helper_pb2.CloseJobReply(rounds_answered=3)

    def _task(self, task_id: bytes) -> Task:
        if task_id not in self.registered:
            raise JobRefused(JobReason.UNKNOWN_TASK, "not registered here")
        return self.registered[task_id]

    def _commit(self, request: helper_pb2.CommitRequest) -> None:
        prepared = self.prepared.get(request.handle)
        if prepared is None:
            raise JobRefused(JobReason.UNKNOWN_DATASET, "not prepared here")
        count = len(prepared.report_ids)
        chosen: NDArray[np.bool_] = np.unpackbits(
            np.frombuffer(request.chosen, np.uint8), count=count, bitorder="little"
        ).astype(np.bool_)
        if (chosen & ~prepared.admitted.is_admitted).any():
            raise InvalidTask("a chosen report is not admitted")
        dataset = open_dataset(request.task_id, prepared, chosen)
        if dataset.dataset_id != request.dataset_id:
            raise JobRefused(JobReason.DATASET_CHANGED, "another id")
        ids = [row.tobytes() for row in dataset.report_ids]
        if self.used() & set(ids):
            raise JobRefused(JobReason.REPORT_ALREADY_USED, "used")
        self.committed[request.dataset_id] = ids


def unavailable() -> Exception:
    return HelperUnavailable("restarting")


@contextmanager
def serving(
    *fakes: FakeHelper, deadline_s: float = 10.0, round_deadline_s: float | None = None
) -> Iterator[tuple[HelperClient, ...]]:
    """Each fake behind gRPC on a free port, and a client of each."""
    with ExitStack() as stack:
        clients = []
        for fake in fakes:
            added = partial(helper_pb2_grpc.add_HelperServicer_to_server, fake)
            address = stack.enter_context(grpc_server(added))
            client = HelperClient(address, None, deadline_s, round_deadline_s=round_deadline_s)
            clients.append(stack.enter_context(client))
        yield tuple(clients)

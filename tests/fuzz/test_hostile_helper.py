"""A helper that answers with anything.

The ad server's client believes none of it, and raises nothing but typed errors.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adserver.peers.client import HelperClient
from maskedlark import canonical
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ReportRejected,
)
from maskedlark.model.losses import Loss
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from protos import helper_pb2 as pb
from tests.builders import examples, reports, shares_for, world
from tests.fuzz.mutations import FUZZ, almost
from tests.grpc_server import grpc_server
from tests.maskedlark.query_specs import query
from tests.maskedlark.test_escape import HOSTILE as OBEYED_TEXT
from tests.maskedlark.test_escape import OBEYED
from tests.measured import measuring_world
from tests.patience import HANGS_S
from tests.refusals import refused

WORLD = world()
MEASURING = measuring_world()
LENGTH = 3
SHARES = shares_for(reports(WORLD, examples(WORLD.task, 2)), 0)
JOB = JobSpec(
    job_id=b"j" * 16, task_id=WORLD.task.task_id, dataset_id=bytes(32), model_digest=bytes(32),
    loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, rounds=3, sampling_numerator=1 << 31, noise_multiplier=1.0,
)  # fmt: skip
ANSWER = AggregateShare(vector=np.arange(LENGTH, dtype=np.uint64), agreement_tag=bytes(32)).encode()
PREPARED = pb.PrepareReply(is_admitted=b"\x01\x00", view_tags=bytes(32))
TOTALS = pb.PrepareReply(
    totals=pb.PrepareReply.Totals(
        received=2, admitted=1, admitted_digest=bytes(32), dropped={"not_opened": 1}
    )
)
IDENTITY = WORLD.task.helpers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One method of the client, and replies that it accepts."""

    run: Callable[[HelperClient], object]
    replies: tuple[Any, ...]

    @property
    def encoded(self) -> list[bytes]:
        return [reply.SerializeToString() for reply in self.replies]


CALLS = {
    "status": Call(
        run=lambda client: client.status(),
        replies=(
            pb.StatusReply(
                name=IDENTITY.name, verify_key=IDENTITY.verify_key, agreement_key=IDENTITY.agreement_key,
                numerics_digest=bytes(32),
                key_list=canonical.encode(WORLD.bundle.key_lists[0]),
            ),
        ),
    ),
    "register": Call(run=lambda client: client.register_task(WORLD.task),
    replies=(pb.RegisterTaskReply(signature=bytes(64)),)),
    "prepare": Call(
        run=lambda client: client.prepare_dataset(WORLD.task.task_id, b"h" * 16, [SHARES], num_reports=2),
        replies=(PREPARED, TOTALS)
    ),
    "commit": Call(
        run=lambda client: client.commit_dataset(WORLD.task.task_id, b"h" * 16, np.array([True, False]),
        b"d" * 32),
        replies=(pb.CommitReply(dataset_id=b"d" * 32, size=1),),
    ),
    "start": Call(
        run=lambda client: client.start_job(JOB, b"a model"),
        replies=(pb.StartJobReply(path="exact", numerics_digest=bytes(32), num_parameters=2,
        epsilon_spent=1.0),),
    ),
    "round": Call(run=lambda client: client.run_round(JOB, 0, b"weights", LENGTH),
    replies=(pb.RoundReply(chunk=ANSWER),)),
    "query": Call(
        run=lambda client: client.run_query(query(MEASURING), b"", LENGTH),
        replies=(pb.QueryReply(spent=pb.QueryReply.Spent(epsilon=1.0, collusion_epsilon=2.0)),
        pb.QueryReply(chunk=ANSWER)),
    ),
    "close": Call(run=lambda client: client.close_job(JOB), replies=(pb.CloseJobReply(rounds_answered=1),)),
}  # fmt: skip
_DEADLINE_S = 0.5  # some answers leave a call open
KINDS = ("InvalidTask", "InvalidModel", "ReportRejected", "JobRefused", "HelperUnavailable", "SystemExit", "")
TYPED = (InvalidTask, InvalidModel, ReportRejected, JobRefused, HelperUnavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a hostile helper does with a call."""

    replies: Sequence[bytes]
    code: grpc.StatusCode = grpc.StatusCode.OK
    said: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


@dataclass
class Hostile(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """A server of any method whatever."""

    behaviour: Behaviour = field(default_factory=lambda: Behaviour(replies=()))
    answered: int = 0

    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        chosen = self.behaviour
        for _ in requests:
            pass
        yield from chosen.replies
        self.answered += 1
        context.set_trailing_metadata(chosen.trailing)
        if chosen.code is not grpc.StatusCode.OK:
            context.abort(chosen.code, chosen.said)


@pytest.fixture(scope="module")
def hostile() -> Hostile:
    return Hostile()


@pytest.fixture(scope="module")
def client(hostile: Hostile) -> Iterator[HelperClient]:
    with (
        grpc_server(lambda server: server.add_generic_rpc_handlers((hostile,))) as address,
        HelperClient(address, None, _DEADLINE_S) as opened,
    ):
        yield opened


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@st.composite
def behaviours(draw: st.DrawFn, call: Call) -> Behaviour:
    """Replies that are almost right, too many or too few, and sometimes an error that says anything about
    itself.
    """
    replies = draw(
        st.one_of(
            st.tuples(*(almost(one) for one in call.encoded)), st.lists(almost(*call.encoded), max_size=4)
        )
    )
    told = Behaviour(replies=replies)
    if draw(st.booleans()):
        return told
    reason = draw(
        st.one_of(PRINTABLE, st.sampled_from(("malformed", "not_onnx", "expired", "ledger_rolled_back")))
    )
    said = (("maskedlark-kind", draw(st.sampled_from(KINDS))), ("maskedlark-reason", reason))
    hint = (
        "maskedlark-retry-after-s",
        draw(st.one_of(PRINTABLE, st.sampled_from(("nan", "inf", "-1", "1e999", "9" * 500)))),
    )
    code = draw(st.sampled_from([one for one in grpc.StatusCode if one is not grpc.StatusCode.OK]))
    return replace(told, code=code, said=draw(PRINTABLE), trailing=(*said, hint))


@pytest.mark.parametrize("name", CALLS)
def test_what_each_call_is_fuzzed_from_is_accepted(name: str, hostile: Hostile, client: HelperClient) -> None:
    hostile.behaviour, before = Behaviour(replies=CALLS[name].encoded), hostile.answered
    with HelperClient(client.address, None, HANGS_S) as patient:
        CALLS[name].run(patient)
    assert hostile.answered == before + 1


@pytest.mark.parametrize("name", CALLS)
@settings(FUZZ, max_examples=30)
@given(data=st.data())
def test_a_helper_that_answers_with_anything_causes_a_typed_error_at_most(
    name: str, hostile: Hostile, client: HelperClient, data: st.DataObject
) -> None:
    hostile.behaviour = data.draw(behaviours(CALLS[name]))
    with suppress(*TYPED):
        CALLS[name].run(client)


def test_the_typed_errors_are_all_there_are() -> None:
    assert all(issubclass(one, MaskedLarkError) for one in TYPED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [one for one in grpc.StatusCode if one is not grpc.StatusCode.OK])
def test_no_word_of_a_helper_is_obeyed_by_a_terminal(
    code: grpc.StatusCode, kind: str, hostile: Hostile, client: HelperClient
) -> None:
    sent = OBEYED_TEXT.encode("utf-8", "replace").decode()
    reason = "not_onnx" if kind == "InvalidModel" else "malformed"
    said = (("maskedlark-kind", kind), ("maskedlark-reason", reason))
    hostile.behaviour = Behaviour(replies=(), code=code, said=sent, trailing=said)
    with pytest.raises(MaskedLarkError) as refused:
        client.status()
    assert "ERROR forged" in str(refused.value)
    assert not OBEYED.search(str(refused.value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": 2**63},
        {"rounds_answered": 2**64 - 1},
        {"numerics_digest": b""},
        {"numerics_digest": bytes(33)},
    ],
)
def test_a_status_that_no_page_can_show_is_refused(
    wrong: dict[str, Any], hostile: Hostile, client: HelperClient
) -> None:
    status = pb.StatusReply()
    status.CopyFrom(CALLS["status"].replies[0])
    for name, told in wrong.items():
        setattr(status, name, told)
    hostile.behaviour = Behaviour(replies=(status.SerializeToString(),))
    with refused(JobReason.BAD_ANSWER):
        client.status()
    status.ClearField("numerics_digest")
    status.MergeFrom(pb.StatusReply(tasks=2**63 - 1, rounds_answered=0, numerics_digest=bytes(32)))
    hostile.behaviour = Behaviour(replies=(status.SerializeToString(),))
    assert client.status().tasks == 2**63 - 1


@pytest.mark.parametrize("field", ["name", "version"])
@pytest.mark.parametrize("word", ["a\u202eb", "a\x9b31m", "a\x7f", "a\nb", "a" * 201])
def test_a_helper_s_name_and_version_can_be_printed(
    field: str, word: str, hostile: Hostile, client: HelperClient
) -> None:
    status = pb.StatusReply()
    status.CopyFrom(CALLS["status"].replies[0])
    setattr(status, field, word)
    hostile.behaviour = Behaviour(replies=(status.SerializeToString(),))
    with refused(JobReason.BAD_ANSWER):
        client.status()

"""Queries, discoveries and evaluations at a helper, fuzzed through the wire.

A typed answer, and the next honest query is answered.
"""

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark import canonical
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.releases.query import Axis, Measure, codes_digest
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from tests.fuzz.mutations import FUZZ, almost, almost_json
from tests.helper.parties import MODEL, WEIGHTS, Scene
from tests.helper.served import served
from tests.maskedlark.query_specs import discovery, evaluation, query
from tests.measured import SHOP
from tests.patience import HANGS_S

CODES = np.arange(5, dtype=np.uint32)
ANSWERS = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip


class Asked(Scene):
    """A helper with a dataset that can be asked all three; `messages` are an honest ad server's."""

    def seal_and_ask(self) -> None:
        features = np.zeros(self.task.num_features, np.uint8)
        made = [
            Example(features=features, label=1.0, measured=MeasuredValues(keys=(n % 3, 0, 0), values=(1, n)))
            for n in range(12)
        ]
        dataset = self.seal(made)
        axis = Axis(key="campaign", size=len(CODES), codes_digest=codes_digest(CODES))
        measures = (Measure(value="purchase", scale=1),)
        made_query = query(self, dataset_id=dataset, measures=measures, group_by=(axis,))
        made_discovery = discovery(self, query_id=b"d" * 16, dataset_id=dataset, max_codes=5)
        made_evaluation = evaluation(
            self,
            query_id=b"e" * 16,
            dataset_id=dataset,
            model_digest=parse(MODEL, num_features=4).digest,
            weights_digest=weights.digest(WEIGHTS),
            num_bins=20,
        )
        self.query, self.discovery, self.evaluation = map(
            canonical.encode, (made_query, made_discovery, made_evaluation)
        )
        self.honest = [
            [pb.QueryRequest(query=self.query), pb.QueryRequest(codes=CODES.tobytes())],
            [pb.QueryRequest(discovery=self.discovery)],
            [pb.QueryRequest(evaluation=self.evaluation), pb.QueryRequest(model=MODEL)],
        ]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    scene = Asked(tmp_path_factory.mktemp("asked"), measurement={**SHOP, "min_cell_count": 2})
    scene.seal_and_ask()
    return scene


@pytest.fixture(scope="module")
def channel(asked: Asked) -> Iterator[grpc.Channel]:
    with served(asked.cores[0]) as address, make_channel(address, None) as opened:
        yield opened


def run_query(channel: grpc.Channel, messages: list[bytes]) -> grpc.StatusCode:
    """How a stream of these bytes ends."""
    call: Any = channel.stream_stream("/maskedlark.v1.Helper/RunQuery", None, None)
    try:
        list(call(iter(messages), timeout=HANGS_S))
    except grpc.RpcError as error:
        status: Any = error
        code: grpc.StatusCode = status.code()
        assert code in ANSWERS or "deserializing" in status.details(), (code, status.details())
        return code
    return grpc.StatusCode.OK


def no_bug(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if "a bug" in record.getMessage()]


def test_the_honest_queries_are_answered(asked: Asked, channel: grpc.Channel) -> None:
    for stream in asked.honest:
        assert run_query(channel, [one.SerializeToString() for one in stream]) is grpc.StatusCode.OK


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@FUZZ
@given(data=st.data())
def test_query_streams_of_random_messages_get_typed_answers(
    asked: Asked, channel: grpc.Channel, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    caplog.set_level(logging.CRITICAL, "grpc._common")
    valid = [one.SerializeToString() for stream in asked.honest for one in stream]
    run_query(channel, data.draw(st.lists(almost(*valid), max_size=5)))
    assert no_bug(caplog)


@FUZZ
@given(data=st.data())
def test_queries_that_say_odd_things_in_the_right_form_get_typed_answers(
    asked: Asked, channel: grpc.Channel, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    """Also with codes or a model that are almost right."""
    first, rest = data.draw(
        st.sampled_from(
            [
                (
                    {"query": data.draw(almost_json(asked.query))},
                    {"codes": data.draw(almost(CODES.tobytes()))},
                ),
                ({"query": asked.query}, {"codes": data.draw(almost(CODES.tobytes()))}),
                ({"discovery": data.draw(almost_json(asked.discovery))}, {}),
                ({"evaluation": data.draw(almost_json(asked.evaluation))}, {"model": MODEL}),
                (
                    {"evaluation": asked.evaluation.replace(b"65" * 16, b"66" * 16)},
                    {"model": data.draw(almost(MODEL))},
                ),
            ]
        )
    )
    stream = [pb.QueryRequest(**first), *([pb.QueryRequest(**rest)] if rest else [])]
    run_query(channel, [one.SerializeToString() for one in stream])
    assert no_bug(caplog)
    assert run_query(channel, [one.SerializeToString() for one in asked.honest[0]]) is grpc.StatusCode.OK

"""A tenant that computes all it may at a helper: part of `make bench-walls`.

It has a task, a dataset and a model of its own, whose rounds and evaluations are just below the helper's
limits, and makes each call again as soon as it ended or was refused.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from helper.gradient.choose import choose_engine
from helper.gradient.exact.engine import ExactEngine
from helper.releases.round_cost import round_cost
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobRefused
from maskedlark.model import weights as weights_format
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.rpc.faults import calling
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import chunks
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.bench.round_memory import convolutional
from tests.helper.parties import FakeEngine
from tests.helper.serving.test_helper_service import Wire
from tests.helper.serving.test_silent_streams import Site

ORIGIN: Final = "https://evil.example"
SIDE: Final = 64
RECORDS: Final = 200
CALLS: Final = 12
ROUNDS: Final = 1_000
_AGAIN_S: Final = 0.2
_CLIP: Final = Clip(norm=Norm.L2, bound=1.0, frac_bits=16)


def engine_of(model: Model, loss: Loss, clip: Clip, classes: int | None) -> Any:
    """The exact engine for the attacker's images, the tests' fake for the other tenant's four features."""
    if model.input_width == SIDE * SIDE:
        return choose_engine(model, loss, clip, classes, threads=os.cpu_count() or 1)
    return FakeEngine(model.num_parameters, clip)


@contextmanager
def heavy_calls(site: Site, kind: str) -> Iterator[None]:
    """Keep as many rounds or evaluations at work as the helper lets one tenant have."""
    evil = site.scene.tenant(ORIGIN, num_features=SIDE * SIDE, max_dataset_size=4_096)
    dataset, onnx = evil.seal(RECORDS), convolutional(SIDE, [(512, 1)], (), 1)
    model = parse(onnx, num_features=SIDE * SIDE)
    encoded = weights_format.encode([weights_format.quantise(one) for one in model.initial_values])
    is_over, began = Event(), Event()

    def spec(number: int) -> JobSpec:
        return JobSpec(
            job_id=number.to_bytes(16, "big"), task_id=evil.task_id, dataset_id=dataset,
            model_digest=model.digest, loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, rounds=ROUNDS,
            sampling_numerator=1 << 32, noise_multiplier=0.0,
        )  # fmt: skip

    def one_round(wire: Wire, number: int, turn: int) -> None:
        if turn == 0:
            wire.start(canonical.encode(spec(number)), onnx)
        wire.round(spec(number), turn, encoded)

    def evaluation(wire: Wire, number: int, turn: int) -> None:
        asked = EvaluationSpec(
            query_id=(number * ROUNDS + turn).to_bytes(16, "big"), task_id=evil.task_id, dataset_id=dataset,
            model_digest=model.digest, weights_digest=weights_format.digest(encoded), num_bins=20,
            noise_multiplier=0.0,
        )  # fmt: skip
        requests = [
            pb.QueryRequest(evaluation=canonical.encode(asked)),
            *(pb.QueryRequest(model=piece) for piece in chunks(onnx)),
        ]
        with calling("helper"):
            for _ in wire.stub.RunQuery(iter(requests), timeout=600):
                pass

    attack = {"rounds": one_round, "evaluations": evaluation}[kind]
    threads = [
        Thread(target=partial(_again, site, attack, number, is_over, began), daemon=True)
        for number in range(CALLS)
    ]
    for thread in threads:
        thread.start()
    try:
        began.wait(120)
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(120)


def _again(
    site: Site, attack: Callable[[Wire, int, int], None], number: int, is_over: Event, began: Event
) -> None:
    """Make one call after the other until it is over."""
    turn = 0
    with make_channel(site.address, site.evil) as channel:
        wire = Wire(stub=helper_pb2_grpc.HelperStub(channel))
        while not is_over.is_set():
            with suppress(HelperUnavailable, JobRefused):
                attack(wire, number, turn)
                turn += 1
                began.set()
                continue
            is_over.wait(_AGAIN_S)


def limit_bytes() -> int:
    """A limit just above what the attacker's rounds take: one of them at a time is its share."""
    model = parse(convolutional(SIDE, [(512, 1)], (), 1), num_features=SIDE * SIDE)
    engine = engine_of(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, _CLIP, 2)
    assert isinstance(engine, ExactEngine)
    return round_cost(model, engine, records=RECORDS, candidates=2).num_bytes * 5 // 4

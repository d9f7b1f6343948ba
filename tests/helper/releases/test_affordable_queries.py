"""Evaluations, queries, discoveries and sums of updates are affordable before they start, hold their caller's
place while they run, and end with their caller."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from helper.datasets.records import DatasetRecords
from helper.executors.executor import Scoring
from helper.executors.local import LocalExecutor
from helper.gradient.engine import Interrupt
from helper.gradient.scoring import Scores
from helper.ledger.records import ReleaseKey, key_of
from helper.releases.answering import Call
from helper.releases.query_cost import query_cost
from helper.serving.service import HelperService
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.releases.update import UpdateSpec
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.faults import calling
from protos import helper_pb2 as pb
from tests.helper.parties import FLOORS, Scene, make_model
from tests.helper.releases.test_evaluation_at_helpers import spec_of
from tests.helper.releases.test_interrupted_queries import ASK, Asked, Gone
from tests.helper.served import stub_of
from tests.helper.update_parties import UpdateScene
from tests.patience import HANGS_S
from tests.refusals import refused


class GatedExecutor(LocalExecutor):
    """Scores until it is interrupted, and says when it began and ended."""

    def __init__(self) -> None:
        super().__init__(1)
        self.began, self.ended = Event(), Event()

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        self.began.set()
        try:
            for _ in range(int(100 * HANGS_S)):
                interrupt()
                time.sleep(0.01)
            raise AssertionError("nobody interrupted the evaluation")
        finally:
            self.ended.set()


def with_floors(asked: Asked, **limits: float) -> None:
    """The same helper with other limits."""
    asked.scene.parties[0].floors = replace(FLOORS, **limits)  # type: ignore[arg-type]
    asked.scene.restart()
    asked.queries = asked.scene.cores[0].queries


@pytest.mark.parametrize("kind", ASK)
@pytest.mark.parametrize(
    ("limit", "value"), [("max_round_seconds", 1e-9), ("max_round_bytes", 1)], ids=["time", "memory"]
)
def test_what_is_too_dear_is_refused_before_it_begins_and_costs_nothing(
    tmp_path: Path, kind: str, limit: str, value: float
) -> None:
    asked, interrupt = Asked(tmp_path), Gone()
    with_floors(asked, **{limit: value})
    option = "--" + limit.replace("_", "-")
    with refused(JobReason.TOO_LARGE, f"this {kind} would take .*{option}"):
        ASK[kind](asked, interrupt)
    assert interrupt.calls == 1  # before the work, and no part of it was done
    assert asked.queries.ledger.query(ReleaseKey(asked.scene.task_id, b"q" * 16)) is None
    with_floors(asked)
    assert ASK[kind](asked, Gone()).answer


@pytest.mark.parametrize(
    ("limit", "value"), [("max_round_seconds", 1e-9), ("max_round_bytes", 1)], ids=["time", "memory"]
)
def test_a_sum_of_updates_that_is_too_dear_is_refused_uncharged(
    tmp_path: Path, limit: str, value: float
) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    spec = UpdateSpec(dataset_id=scene.seal_round(one, scene.sealed(one, scene.vectors(4))), round=one)
    scene.parties[0].floors = replace(scene.parties[0].floors, **{limit: value})  # type: ignore[arg-type]
    scene.restart()
    with refused(JobReason.TOO_LARGE, "this update would take"):
        scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None))
    assert not scene.cores[0].status().counts.rounds_answered
    assert scene.cores[1].queries.answer(spec, lambda _: b"", Call(caller=None)).answer


def test_a_sum_of_updates_ends_wherever_its_caller_leaves(tmp_path: Path) -> None:
    def made(folder: Path) -> tuple[UpdateScene, UpdateSpec]:
        scene = UpdateScene(folder)
        one = scene.round()
        dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(4)))
        return scene, UpdateSpec(dataset_id=dataset, round=one)

    whole = Gone()
    twin, spec = made(tmp_path / "twin")
    twin.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None, check_awaited=whole))
    assert whole.calls >= 4 + 2  # each share, before the work and before the charge
    scene, spec = made(tmp_path / "one")
    for at in range(1, whole.calls + 1):
        gone = Gone(at)
        with pytest.raises(JobRefused, match="gone"):
            scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None, check_awaited=gone))
        assert gone.calls == at
    assert scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None)).answer


def test_the_estimate_of_a_sum_grows_with_devices_and_parameters(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    spec = UpdateSpec(dataset_id=b"d" * 32, round=scene.round())
    few, many = (query_cost(scene.task, spec, records).seconds for records in (1_000, 100_000))
    assert many > 50 * few


@contextmanager
def gated(folder: Path, room: FairQuota) -> Iterator[tuple[GatedExecutor, Callable[[], Any]]]:
    """A helper whose evaluations are gated, and what asks it for one over a channel."""
    scene, onnx = Scene(folder), make_model()
    spec, executor = spec_of(scene, scene.seal(30), onnx), GatedExecutor()
    core = scene.cores[0]
    core.queries = replace(core.queries, executor=executor)
    with stub_of(HelperService(core, admission=room)) as stub:

        def ask() -> Any:
            requests = [pb.QueryRequest(evaluation=canonical.encode(spec)), pb.QueryRequest(model=onnx)]
            return stub.RunQuery(iter(requests), timeout=HANGS_S)

        yield executor, ask
    assert core.queries.ledger.query(key_of(spec)) is None
    with (
        core.queries.quota.taken("one", FLOORS.max_round_bytes),
        core.queries.quota.taken("another", FLOORS.max_round_bytes),
    ):
        pass  # all of the memory was given back


def test_an_evaluation_holds_its_callers_place_and_ends_with_its_caller(tmp_path: Path) -> None:
    room = FairQuota(1)
    with gated(tmp_path, room) as (executor, ask):
        first = ask()
        assert executor.began.wait(HANGS_S)
        with pytest.raises(HelperUnavailable, match="limit of calls"), calling("helper"):
            list(ask())
        first.cancel()
        assert executor.ended.wait(HANGS_S)
        until = time.monotonic() + HANGS_S
        while room._held.total():
            assert time.monotonic() < until
            time.sleep(0.02)

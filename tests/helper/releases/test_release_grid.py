"""When answers leave: whole steps after their requests, and never a moment that tells the sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helper.ledger.records import key_of
from helper.releases.answering import Call
from helper.releases.release_grid import ReleaseGrid
from helper.serving.service import HelperService
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.rpc.wire import chunks
from protos import helper_pb2 as pb
from tests.helper.parties import WEIGHTS, FakeEngine, Scene
from tests.helper.served import stub_of
from tests.patience import HANGS_S
from tests.refusals import refused


class Simulated:
    """A clock that moves only by sleeping and by work."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.mark.parametrize(
    ("work", "leaves_after"), [(0.0, 0.25), (0.01, 0.25), (0.2499, 0.25), (0.26, 0.5), (1.1, 1.25)]
)
def test_an_answer_leaves_a_whole_number_of_steps_after_its_request(work: float, leaves_after: float) -> None:
    clock = Simulated()
    grid = ReleaseGrid(step_s=0.25, now=clock.now, sleep=clock.sleep)
    clock.time += work
    grid.wait(100.0)
    assert clock.time - 100.0 == pytest.approx(leaves_after)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_that_is_no_time_is_refused(step: float) -> None:
    with pytest.raises(ValueError, match="step"):
        ReleaseGrid(step_s=step)


def answer_times(
    scene: Scene, spec: Any, rounds: int, grid: ReleaseGrid
) -> tuple[list[float], list[list[int]]]:
    """For each round asked over gRPC: how long it took by the grid's clock, and the sizes of all messages."""
    times, sizes = [], []
    with stub_of(HelperService(scene.cores[0], grid), threads=2) as stub:
        stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S)  # connects
        for index in range(rounds):
            header = pb.RoundRequest(
                header=pb.RoundRequest.Header(task_id=spec.task_id, job_id=spec.job_id, round=index)
            )
            requests = [header, *(pb.RoundRequest(weights=piece) for piece in chunks(WEIGHTS))]
            began = grid.now()
            replies = list(stub.RunRound(iter(requests), timeout=HANGS_S))
            times.append(grid.now() - began)
            sizes.append([reply.ByteSize() for reply in replies])
    return times, sizes


def test_nothing_is_charged_before_its_answer_may_leave_and_nothing_for_who_has_gone_by_then(
    tmp_path: Path,
) -> None:
    scene, held = Scene(tmp_path), list[int]()
    spec = scene.job(scene.seal(60))
    scene.start(spec)
    core = scene.cores[0]

    def hold() -> None:
        held.append(core.counts().rounds_answered)

    def gone() -> None:
        if held:
            raise JobRefused(JobReason.CANCELLED, "gone")

    job = core.jobs.at_work(key_of(spec), None)
    with refused(JobReason.CANCELLED):
        job.answer(0, WEIGHTS, Call(caller=None, check_awaited=gone, hold=hold))
    assert (held, core.counts().rounds_answered) == ([0], 0)
    answer = job.answer(0, WEIGHTS, Call(caller=None, hold=hold))
    assert (held, core.counts().rounds_answered) == ([0, 0], 1)
    assert job.answer(0, WEIGHTS, Call(caller=None, hold=hold)) == answer
    assert held == [0, 0, 1]  # also what was answered before leaves on the grid


def test_two_runs_that_differ_only_in_the_sampled_set_look_alike_in_sizes_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them samples too few records, and so sums nothing.

    The clock is the grid's own: it moves by sleeping, and by a millisecond for each record that is summed.
    """
    step_s, rounds, seen, worked = 0.1, 6, [], []
    for name, draw in _SAMPLES.items():
        folder = tmp_path / name
        folder.mkdir()
        scene = Scene(
            folder, mechanism=Mechanism.GAUSSIAN, epsilon=16.0, collusion_epsilon=1000.0, min_batch_size=10
        )
        spec = scene.job(
            scene.seal(60), noise_multiplier=5.0, sampling_numerator=1 << 31, is_sample_public=True
        )
        scene.start(spec)
        clock = Simulated()
        sum_of = FakeEngine.masked_sum

        def slower(
            engine: FakeEngine, tensors: Any, batch: Any, *rest: Any, of: Any = sum_of, clock: Any = clock
        ) -> Any:
            worked.append(int(batch.mask_shares.any(axis=1).sum()))
            clock.time += 0.001 * worked[-1]
            return of(engine, tensors, batch, *rest)

        monkeypatch.setattr(FakeEngine, "masked_sum", slower)
        monkeypatch.setattr("maskedlark.reports.helper_pair_key.PairKey.sample", draw)
        grid = ReleaseGrid(step_s=step_s, now=clock.now, sleep=clock.sleep)
        seen.append(answer_times(scene, spec, rounds, grid))
        monkeypatch.undo()
    assert set(worked) == {0, 30}  # without the grid the times would tell
    for times, sizes in seen:
        assert sizes == seen[0][1]
        assert times == pytest.approx([step_s] * rounds)


def _only(wanted: Callable[[int], bool]) -> Any:
    import numpy as np

    return lambda _pair, _transcript, count, _numerator: np.array([wanted(row) for row in range(count)])


_SAMPLES = {
    "even": _only(lambda row: row % 2 == 0),
    "odd": _only(lambda row: row % 2 == 1),
    "too_few": _only(lambda row: row < 3),
}


def test_answers_leave_every_ten_milliseconds_unless_the_operator_says_otherwise() -> None:
    assert ReleaseGrid().step_s == 0.01

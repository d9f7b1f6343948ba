"""Models and engines between rounds: bounded by their bytes, and no tenant's jobs push out another's."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

from helper.gradient.choose import choose_engine
from helper.ledger.records import key_of
from maskedlark import canonical
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.releases.job import JobSpec
from tests.bench.heavy_tenant import ORIGIN
from tests.bench.round_memory import convolutional
from tests.builders import job_spec
from tests.helper.parties import ASKED, FLOORS, WEIGHTS, FakeEngine, Scene, make_model
from tests.helper.parties import MODEL as SMALL
from tests.patience import HANGS_S

SIDE = 64
MODEL = make_model(SIDE * SIDE)
LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


def rivals_jobs(scene: Scene, count: int) -> list[JobSpec]:
    """Start so many jobs of another tenant at the first helper."""
    evil = scene.tenant(ORIGIN, num_features=SIDE * SIDE, max_dataset_size=4_096)
    dataset = evil.seal(20)
    digest = parse(MODEL, num_features=SIDE * SIDE).digest
    specs = [
        job_spec(evil.task_id, job_id=number.to_bytes(16, "big"), dataset_id=dataset, model_digest=digest)
        for number in range(count)
    ]
    for spec in specs:
        scene.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    return specs


def test_a_hundred_jobs_of_one_tenant_leave_anothers_in_memory(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.parties[0].floors = replace(FLOORS, max_round_bytes=64 << 20)
    scene.restart()
    spec = scene.job(scene.seal())
    scene.start(spec)
    kept = scene.cores[0].jobs
    before = kept._running_here(key_of(spec))
    rivals = rivals_jobs(scene, 100)
    assert kept._running_here(key_of(spec)) is before
    assert kept._running._taken.total() <= 32 << 20
    assert kept._running_here(key_of(rivals[0])) is None
    assert kept._running_here(key_of(rivals[-1])) is not None
    assert scene.answer(0, spec, 0, WEIGHTS)


def test_tables_of_windows_and_weights_count() -> None:
    """A few kilobytes of a file list millions of places, 4 bytes each."""
    onnx = convolutional(128, [(2, 9)], (), 1)
    model = parse(onnx, num_features=128 * 128)
    engine = choose_engine(model, LOGITS, Clip(norm=Norm.L2, bound=1.0, frac_bits=16), 2)
    assert len(onnx) < 8_192
    assert engine.path == "exact"
    assert engine.held_bytes >= 4 * 128 * 128 * 81


def test_one_tenant_reads_one_model_at_a_time_and_others_read_theirs_meanwhile(tmp_path: Path) -> None:
    """Tables of windows take 300 MiB while they are made, whatever a round may take."""
    scene = Scene(tmp_path)
    evil = scene.tenant(ORIGIN, num_features=SIDE * SIDE, max_dataset_size=4_096)
    dataset, other = evil.seal(20), scene.job(scene.seal())
    onnx = make_model(SIDE * SIDE)
    digest = parse(onnx, num_features=SIDE * SIDE).digest
    reading, may_go_on, most = Lock(), Event(), [0]
    at_once = [0]
    began = Event()

    def slow_engine(model: Model, loss: Loss, clip: Clip, classes: int | None) -> Any:
        if model.input_width == SIDE * SIDE:
            with reading:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            began.set()
            assert may_go_on.wait(HANGS_S)
            with reading:
                at_once[0] -= 1
        return FakeEngine(model.num_parameters, clip)

    scene.restart(engine_for=slow_engine)
    jobs = scene.cores[0].jobs

    def start(number: int) -> None:
        spec = job_spec(
            evil.task_id, job_id=number.to_bytes(16, "big"), dataset_id=dataset, model_digest=digest
        )
        jobs.start(canonical.encode(spec), onnx, ASKED)

    with ThreadPoolExecutor(6) as pool:
        started = [pool.submit(start, number) for number in range(6)]
        assert began.wait(HANGS_S)
        jobs.start(canonical.encode(other), SMALL, ASKED)
        may_go_on.set()
        for one in started:
            one.result(HANGS_S)
    assert most == [1]

"""The curves that people look at, made from the history alone."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from adserver.records.round_figures import RoundFigures, noise_to_signal
from adserver.training.curves import CSV_NAME, EVENTS_NAME, CurveWriter, _write_csv
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from tests.adserver.job_world import plan_for, sealed

HISTORY = tuple(
    RoundFigures(
        rounds_done=number,
        finished_at_s=1000.0 + number,
        learning_rate=0.1,
        gradient_norm=1 / (number + 3),
        noise_to_signal=0.3 if number % 2 else None,
        loss=0.7 - 0.01 * number if number % 5 == 0 else None,
        accuracy=0.5 + 0.01 * number if number % 5 == 0 else None,
        auc=0.6 + 0.01 * number if number % 5 == 0 else None,
    )
    for number in range(1, 21)
)


def read_events(folder: Path) -> list[tuple[str, int, float, float]]:
    """(tag, step, value, wall time) of all files, as TensorBoard reads them.

    Length, checksum, message, checksum.
    """
    found = []
    for file in sorted((folder / EVENTS_NAME).iterdir()):
        stored = file.read_bytes()
        offset = 0
        while offset < len(stored):
            length = int.from_bytes(stored[offset : offset + 8], "little")
            event = Event.FromString(stored[offset + 12 : offset + 12 + length])
            found += [
                (value.tag, event.step, value.simple_value, event.wall_time) for value in event.summary.value
            ]
            offset += 12 + length + 4
    return found


def test_the_csv_file_holds_every_figure_exactly(tmp_path: Path) -> None:
    _write_csv(tmp_path, HISTORY)
    rows = list(csv.DictReader((tmp_path / CSV_NAME).read_text().splitlines()))
    assert len(rows) == len(HISTORY)
    for row, figures in zip(rows, HISTORY, strict=True):
        for name, cell in row.items():
            value = getattr(figures, name)
            assert cell == "" if value is None else float(cell) == value


def test_events_of_a_resumed_job_hold_each_round_once(tmp_path: Path) -> None:
    with CurveWriter.open(tmp_path, ()) as curves:
        for figures in HISTORY[:12]:
            curves.append(figures)
    with CurveWriter.open(tmp_path, HISTORY[:10]) as curves:  # the last two rounds were not finished
        for figures in HISTORY[10:]:
            curves.append(figures)
    norms = [
        (step, value, wall)
        for tag, step, value, wall in read_events(tmp_path)
        if tag == "round/gradient_norm"
    ]
    assert [step for step, _, _ in norms] == list(range(1, 21))
    assert [value for _, value, _ in norms] == pytest.approx(
        [figures.gradient_norm for figures in HISTORY], rel=1e-6
    )
    assert [wall for _, _, wall in norms] == [figures.finished_at_s for figures in HISTORY]
    losses = [step for tag, step, _, _ in read_events(tmp_path) if tag == "eval/loss"]
    assert losses == [5, 10, 15, 20]
    areas = [value for tag, _, value, _ in read_events(tmp_path) if tag == "eval/auc"]
    assert areas == pytest.approx([0.65, 0.7, 0.75, 0.8])
    assert len((tmp_path / CSV_NAME).read_text().splitlines()) == 21


def test_the_csv_file_is_rewritten_while_the_job_runs(tmp_path: Path) -> None:
    with CurveWriter.open(tmp_path, (), rewrite_every_s=3.0) as curves:
        for figures in HISTORY[:4]:
            assert not (tmp_path / CSV_NAME).exists()
            curves.append(figures)
        assert len((tmp_path / CSV_NAME).read_text().splitlines()) == 5


def test_a_running_job_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    script = """
import json, sys
from pathlib import Path
import adserver.training.federated.run, adserver.training.runner, adserver.training.worker
from adserver.records.round_figures import RoundFigures
from adserver.training.curves import CurveWriter
with CurveWriter.open(Path(sys.argv[1]), ()) as curves:
    curves.append(RoundFigures(rounds_done=1, finished_at_s=0.0, loss=1.0))
print(json.dumps(sorted(sys.modules)))
"""
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    heavy = {"dp_accounting", "matplotlib", "onnxruntime", "pyarrow", "scipy", "tensorboardX", "torch"}
    assert not heavy & set(json.loads(shown.stdout))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_noise_norm_is_what_two_helpers_noise_measures(mechanism: str) -> None:
    plan = plan_for(
        sealed(mechanism=mechanism, norm="l1" if mechanism == "laplace" else "l2"), noise_multiplier=0.5
    )
    count = 50_000
    drawn = sum(
        noise_vector(
            Mechanism(mechanism), plan.job.noise_units(plan.task), count, seeded(role, mechanism)
        ).astype(np.float64)
        for role in (0, 1)
    )
    measured = float(np.linalg.norm(np.ldexp(drawn, -plan.task.frac_bits))) / plan.denominator
    assert plan.noise_norm(count) == pytest.approx(measured, rel=0.02)


def test_there_is_no_noise_in_a_task_without() -> None:
    plan = plan_for(sealed())
    assert plan.noise_norm(5) == 0.0


def test_noise_to_signal_takes_the_noise_out_of_the_norm() -> None:
    assert noise_to_signal(5.0, 3.0) == pytest.approx(0.75)
    assert noise_to_signal(5.0, 0.0) == 0.0


@pytest.mark.parametrize("gradient_norm", [0.0, 2.0, 3.0])
def test_a_signal_that_is_lost_in_noise_has_no_ratio(gradient_norm: float) -> None:
    assert noise_to_signal(gradient_norm, 3.0) is None

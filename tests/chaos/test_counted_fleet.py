"""What the chaos run makes of the rounds that helpers wrote down."""

import json
from pathlib import Path

import pytest

from tests.chaos.counted_fleet import Written, read
from tests.helper.parties import Scene


def line(role: int, index: int, *records: int, job: str = "aa") -> bytes:
    told = {"role": role, "job": job, "steps": 3, "round": index, "records": list(records)}
    return json.dumps(told).encode() + b"\n"


def test_a_record_in_two_rounds_of_an_epoch_is_seen() -> None:
    (seen,) = read([line(0, 0, 1, 2), line(0, 1, 2), line(1, 1, 1)]).violations()
    assert "rounds [0, 1] of epoch 0" in seen


@pytest.mark.parametrize(
    "lines",
    [
        [line(0, 0, 1), line(0, 0, 1)],  # computed twice, as after a kill
        [line(0, 2, 1), line(0, 3, 1)],  # in two epochs
        [line(0, 0, 1), line(1, 1, 1)],  # at two helpers
        [line(0, 0, 1), line(0, 1, 1, job="bb")],  # in two jobs
        [line(0, 0, 1), line(0, 1, 1)[:-3]],  # cut off
    ],
)
def test_the_same_round_again_and_other_epochs_are_no_violation(lines: list[bytes]) -> None:
    assert read(lines).violations() == []


def test_a_helper_writes_down_every_round_that_it_computes(tmp_path: Path) -> None:
    scene, file = Scene(tmp_path), tmp_path / "written"
    spec = scene.job(scene.seal(60), epoch_steps=3, sampling_numerator=2**32 // 3, rounds=3)
    scene.start(spec)
    with Written(file=file).counted():
        for index in range(3):
            scene.run(spec, index)
    counted = read(file.read_bytes().splitlines(keepends=True))
    assert len(counted.computed) == 6
    assert len(counted.rounds) == 2 * 60
    assert counted.violations() == []

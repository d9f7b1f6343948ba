"""A job's own clip bound: at most the task's, enforced by both helpers, which noise what it bounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, MaskedLarkError
from maskedlark.privacy.adaptive_clip import RoundInput
from maskedlark.releases.job import JobSpec
from tests.builders import helper_share, zeros
from tests.helper.parties import ASKED, MODEL, WEIGHTS, Scene
from tests.maskedlark.releases.test_split_noise import FULL, job
from tests.refusals import refused

RECORDS = 40
LIMITS: dict[str, Any] = {"clip_norm": 2.0, "epsilon": 1e5, "collusion_epsilon": 1e5}


def test_an_unset_clip_is_in_no_canonical_bytes() -> None:
    whole, own = job(FULL), job(FULL, clip_norm=FULL.task.clip_norm)
    assert b"clip_norm" not in canonical.encode(whole)
    assert b"clip_norm" in canonical.encode(own)
    assert own.digest != whole.digest
    assert canonical.decode(JobSpec, canonical.encode(own)) == own


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_noise_is_of_the_jobs_bound_and_the_charge_of_its_multiplier(share: float) -> None:
    task = FULL.task
    whole, own = job(FULL), job(FULL, clip_norm=share * task.clip_norm)
    assert own.clip(task).sensitivity == whole.clip(task).sensitivity * share
    assert own.noise_units(task) == pytest.approx(share * whole.noise_units(task), abs=1)
    assert own.charge(task, 7) == whole.charge(task, 7)


@pytest.mark.parametrize("clip_norm", [1.0 + 2.0**-40, 64.0])
def test_a_clip_above_the_tasks_is_refused_by_every_party(clip_norm: float) -> None:
    own = job(FULL, clip_norm=clip_norm * FULL.task.clip_norm)
    with refused(JobReason.MALFORMED, "allows at most"):
        own.check_sums_fit(FULL.task, records=100, num_parameters=3)
    with refused(JobReason.MALFORMED, "allows at most"):
        own.noise_units(FULL.task)


@pytest.mark.parametrize("clip_norm", [2.0**-11, 2.0**11, 0.0, -1.0, float("nan"), float("inf")])
def test_a_clip_that_is_no_bound_is_no_job(clip_norm: float) -> None:
    with pytest.raises((InvalidTask, MaskedLarkError, ValueError)):
        job(FULL, clip_norm=clip_norm)


def test_a_helper_refuses_the_job_before_anything_is_stored(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **LIMITS)
    spec = scene.job(scene.seal(RECORDS), clip_norm=2.5)
    for core in scene.cores:
        before = core.status().counts
        with refused(JobReason.MALFORMED, "allows at most"):
            core.jobs.start(canonical.encode(spec), MODEL, ASKED)
        assert core.status().counts == before


def test_helpers_clip_to_the_jobs_bound(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **LIMITS)
    scene.restart(engine_for=choose_engine)
    dataset = scene.seal(RECORDS)
    sums = []
    for clip_norm in (None, 2.0**-9):
        spec = scene.job(dataset, clip_norm=clip_norm, job_id=bytes([clip_norm is None]) * 16)
        scene.start(spec)
        sums.append(np.ldexp(scene.run(spec, 0).astype(float), -scene.task.frac_bits))
    assert np.linalg.norm(sums[1]) <= RECORDS * 2.0**-9 < np.linalg.norm(sums[0])


@pytest.mark.parametrize(("bound", "is_accepted"), [(0.5, True), (0.5001, False), (2.0, False)])
def test_an_adaptive_bound_stays_below_the_jobs(tmp_path: Path, bound: float, is_accepted: bool) -> None:
    scene = Scene(tmp_path, **LIMITS)
    spec = scene.job(scene.seal(RECORDS), clip_norm=0.5, is_clip_adaptive=True)
    scene.restart(engine_for=choose_engine)
    scene.start(spec)
    sent = RoundInput(weights=WEIGHTS, bound=bound).encode()
    if is_accepted:
        scene.answer(0, spec, 0, sent)
        return
    with refused(JobReason.MALFORMED, "clip bound"):
        scene.answer(0, spec, 0, sent)


def test_an_engine_that_clips_to_the_tasks_bound_is_caught() -> None:
    own = job(FULL, clip_norm=FULL.task.clip_norm / 2)
    with pytest.raises(AssertionError, match="larger than the job allows"):
        helper_share(FULL, own, 0, lambda _: zeros(FULL.task), records=RECORDS)

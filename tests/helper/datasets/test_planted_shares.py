"""An ad server that seals shares of its own to one helper, under somebody's report id.

HPKE lets anybody seal.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.randomness import system_randomness
from maskedlark.releases.release import AggregateShare
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.report import Example
from maskedlark.reports.sealing import SealingKey, share_info
from maskedlark.reports.upload import Report, SealedShare
from tests.builders import shares_for, split
from tests.helper.parties import ASKED, MODEL, NUM_VALUES, Scene

VICTIM = Example(features=np.array([0, 200, 0, 7], np.uint8), label=1)
HANDLE = b"h" * 16


def planted(scene: Scene, report: Report, role: int, example: Example) -> ShareForHelper:
    """A share for one helper under a victim's report id: made from public keys only."""
    key = SealingKey(scene.bundle.key_lists[role].key_list.keys[0])
    plaintext = split(scene.task, example, system_randomness, report.report_id)[role]
    info = share_info(
        task_id=scene.task_id,
        report_id=report.report_id,
        time_bucket=report.time_bucket,
        role=role,
        key_id=key.key_id,
    )
    return replace(
        shares_for([report], role)[0],
        share=SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info)),
    )


def test_a_planted_share_gives_noise_in_every_coordinate(tmp_path: Path) -> None:
    """Else the coordinates where the victim's gradient is zero would stand out, and with them its
    features."""
    settings = {
        "mechanism": "gaussian",
        "norm": "l2",
        "epsilon": 4.0,
        "collusion_epsilon": 60.0,
        "frac_bits": 24,
    }
    scene = Scene(tmp_path, min_batch_size=20, **settings)
    scene.restart(engine_for=choose_engine)
    [victim] = scene.reports([VICTIM])
    own = scene.reports([Example(features=np.full(4, 9, np.uint8), label=None)] * 19, seed=5)
    everything = np.ones(20, np.bool_)
    bits = np.packbits(everything, bitorder="little").tobytes()
    incoming = (
        shares_for([victim, *own], 0),
        [planted(scene, victim, 1, Example(features=np.zeros(4, np.uint8), label=None)), *shares_for(own, 1)],
    )
    datasets = []
    for core, shares in zip(scene.cores, incoming, strict=True):
        preparation = core.datasets.prepare(scene.task_id, HANDLE, None)
        assert preparation.add(shares).is_admitted.all()
        datasets.append(preparation.finish().admitted_digest)
        core.datasets.commit(scene.task_id, HANDLE, bits, datasets[-1], None)
    assert datasets[0] != datasets[1]
    vectors = []
    for role, core in enumerate(scene.cores):
        spec = scene.job(datasets[role], noise_multiplier=30.0, rounds=1)
        core.jobs.start(encode(spec), MODEL, ASKED)
        vectors.append(AggregateShare.decode(scene.answer(role, spec, 0), NUM_VALUES).vector)
    total = to_signed(reconstruct(vectors[0], vectors[1])).astype(np.float64)
    assert (np.abs(total) > 2.0**34).all()  # noise is below 2^32 here


def test_one_dataset_id_cannot_name_different_views(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    [victim, *others] = scene.reports(20)
    fake = planted(scene, victim, 1, VICTIM)
    prepared = scene.prepare([victim, *others])
    preparation = scene.cores[1].datasets.prepare(scene.task_id, prepared.handle, None)
    preparation.add([fake, *shares_for(others, 1)])
    preparation.finish()
    with pytest.raises(JobRefused) as refusal:
        scene.cores[1].datasets.commit(
            scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None
        )
    assert refusal.value.reason is JobReason.DATASET_CHANGED


def test_view_tags_do_not_confirm_a_guess_of_somebodys_features(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    [victim] = scene.reports([VICTIM])
    tag = (
        scene.cores[0]
        .datasets.prepare(scene.task_id, HANDLE, None)
        .add(shares_for([victim], 0))
        .view_tags[0]
        .tobytes()
    )
    guesses = [planted(scene, victim, 1, VICTIM) for _ in range(64)]  # features, label and all: exactly right
    tags = {
        scene.cores[1].datasets.prepare(scene.task_id, HANDLE, None).add([guess]).view_tags[0].tobytes()
        for guess in guesses
    }
    assert tag not in tags

"""Jobs that train some of a model's parameters, at helpers: what travels, noise, charge, and refusals."""

from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, ModelReason
from maskedlark.model import weights as weights_format
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.adaptive_clip import RoundInput
from maskedlark.releases.job import MAX_NAMES, JobSpec
from maskedlark.releases.release import AggregateShare, combine
from tests.helper.parties import ASKED, MODEL, Scene
from tests.maskedlark.releases.test_split_noise import FULL, job
from tests.refusals import refused

RECORDS = 40
QUIET: dict[str, Any] = {"mechanism": "none", "clip_norm": 64.0}
NOISY: dict[str, Any] = {"epsilon": 1e5, "collusion_epsilon": 1e5, "clip_norm": 2.0}
CARRIED: dict[str, Any] = {
    "epoch_steps": 2,
    "sampling_numerator": 1 << 31,
    "rounds": 4,
    "noise_multiplier": 4.0,
    "carried": 32,
    "is_sample_public": True,
}


class Sealed(Scene):
    """A scene with real engines and one dataset."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder, **changes)
        self.restart(engine_for=choose_engine)
        self.dataset = self.seal(RECORDS)


def frozen_job(scene: Sealed, trained: tuple[str, ...] | None, **changes: Any) -> JobSpec:
    model = parse(MODEL, num_features=4, trained=trained)
    return scene.job(scene.dataset, trained=trained, model_digest=model.digest, **changes)


def round_input(trained: tuple[str, ...] | None) -> bytes:
    model = parse(MODEL, num_features=4, trained=trained)
    return weights_format.encode([weights_format.quantise(value) for value in model.initial_values])


def run(scene: Scene, spec: JobSpec, length: int, round_index: int = 0, sent: bytes | None = None) -> Any:
    given = round_input(spec.trained) if sent is None else sent
    answers = [scene.answer(role, spec, round_index, given) for role in (0, 1)]
    first, second = (AggregateShare.decode(answer, length) for answer in answers)
    return combine(first, second)


def test_unset_it_is_in_no_canonical_bytes() -> None:
    whole, own = job(FULL), job(FULL, trained=("head.weight", "ü"))
    assert b"trained" not in canonical.encode(whole)
    assert canonical.decode(JobSpec, canonical.encode(own)) == own
    assert own.digest != whole.digest
    assert own.digest != job(FULL, trained=("ü", "head.weight")).digest


def test_the_charge_and_the_noise_of_a_number_are_those_of_the_whole_model() -> None:
    """Sensitivity is the clip's, whatever is trained; the noise's bound is over fewer numbers."""
    task, whole, own = FULL.task, job(FULL), job(FULL, trained=("a",))
    assert own.charge(task, 7) == whole.charge(task, 7)
    assert own.noise_units(task) == whole.noise_units(task)
    assert own.clip(task) == whole.clip(task)
    assert own.noise_bound(task, 10) < whole.noise_bound(task, 10**6)


def test_weights_answers_and_sums_are_of_the_trained_parameters_alone(tmp_path: Path) -> None:
    scene = Sealed(tmp_path, **QUIET)
    whole = frozen_job(scene, None, job_id=b"a" * 16)
    scene.start(whole)
    total = run(scene, whole, 5)
    for number, (trained, place) in enumerate({("w",): slice(0, 4), ("b",): slice(4, 5)}.items()):
        spec = frozen_job(scene, trained, job_id=bytes([number]) * 16)
        scene.start(spec)
        count = place.stop - place.start
        started = scene.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
        assert (started.num_parameters, len(round_input(trained))) == (count, 1 + 2 * count)
        assert np.abs(run(scene, spec, count) - total[place]).max() <= RECORDS
        answers = {len(scene.answer(role, spec, 0, round_input(spec.trained))) for role in (0, 1)}
        assert answers == {len(scene.answer(0, whole, 0, round_input(None))) - 8 * (5 - count)}
        with refused(JobReason.MALFORMED, "weights have 12 bytes"):
            scene.answer(0, spec, 1, round_input(None))
    scene.restart(engine_for=choose_engine)  # rebuilt from the ledger
    assert np.abs(run(scene, spec, 1, 1) - total[4:]).max() <= RECORDS


def test_a_small_clip_is_spent_on_what_is_trained(tmp_path: Path) -> None:
    """The whole gradient's bias part is a fraction of the bound; alone it fills it."""
    scene = Sealed(tmp_path, **QUIET)
    lengths = {}
    for number, trained in enumerate((None, ("b",))):
        spec = frozen_job(scene, trained, clip_norm=2.0**-9, job_id=bytes([number]) * 16)
        scene.start(spec)
        total = run(scene, spec, 5 if trained is None else 1)
        lengths[trained] = abs(float(total[-1])) * 2.0**-scene.task.frac_bits
    assert lengths[("b",)] <= RECORDS * 2.0**-9
    assert lengths[("b",)] > 1.1 * lengths[None]


@pytest.mark.parametrize(
    ("changes", "extra"),
    [({}, 0), ({"is_clip_per_layer": True}, 0), ({"is_clip_adaptive": True}, 1), (CARRIED, 0)],
    ids=["one clip", "per layer", "adaptive", "carried"],
)
def test_noise_is_drawn_for_what_is_trained_in_each_kind_of_job(
    tmp_path: Path, changes: dict[str, Any], extra: int
) -> None:
    scene = Sealed(tmp_path, mechanism="gaussian", max_dataset_size=RECORDS, **NOISY)
    spec = frozen_job(scene, ("b",), **{"rounds": 4, "noise_multiplier": 4.0, **changes})
    scene.start(spec)
    values = []
    for number in range(spec.rounds):
        sent = round_input(("b",))
        if extra:
            sent = RoundInput(weights=sent, bound=1.0).encode()
        values.append(run(scene, spec, 1 + extra, number, sent))
    largest = RECORDS * spec.clip(scene.task).released_sensitivity
    assert max(int(np.abs(one).max()) for one in values) <= largest + spec.noise_bound(scene.task, 1 + extra)
    assert len({one.tobytes() for one in values}) == spec.rounds
    spent = [core.jobs.close(canonical.encode(spec), None) for core in scene.cores]
    assert spent == [spec.rounds] * 2


@pytest.mark.parametrize(
    "trained",
    [
        ("nothing",),
        ("w", "nothing"),
        ("w", "w"),
        ("b", "w"),
        ("w", "b"),
        ("x",),
        tuple(f"{number}" for number in range(MAX_NAMES)),
    ],
    ids=["unknown", "one unknown", "repeated", "order", "all", "input", "many"],
)
def test_names_that_do_not_fit_are_refused_before_anything_is_stored(
    tmp_path: Path, trained: tuple[str, ...]
) -> None:
    scene = Sealed(tmp_path, **NOISY)
    spec = scene.job(scene.dataset, trained=trained)
    for core in scene.cores:
        before = core.status().counts
        with refused(ModelReason.WRONG_PARAMETERS):
            core.jobs.start(canonical.encode(spec), MODEL, ASKED)
        assert core.status().counts == before


@pytest.mark.parametrize(
    "trained", [(), ("",), ("n" * 257,), tuple("a" for _ in range(MAX_NAMES + 1)), "w", (1,)]
)
def test_what_is_no_list_of_names_is_no_job(tmp_path: Path, trained: Any) -> None:
    with pytest.raises((InvalidTask, ValueError)):
        job(FULL, trained=trained)
    scene = Sealed(tmp_path, **NOISY)
    whole = canonical.encode(scene.job(scene.dataset))
    written = canonical.encode(scene.job(scene.dataset, trained=("w",))).replace(
        b'["w"]', str(list(trained) if isinstance(trained, tuple) else trained).replace("'", '"').encode()
    )
    assert written != whole
    with pytest.raises(InvalidTask):
        scene.cores[0].jobs.start(written, MODEL, ASKED)


def test_a_file_with_other_frozen_values_is_another_model(tmp_path: Path) -> None:
    """What one helper would compute with, the other one has too."""
    scene = Sealed(tmp_path, **NOISY)
    spec = frozen_job(scene, ("b",))
    whole = parse(MODEL, num_features=4)
    moved = {
        name: replace_parameters(
            MODEL,
            whole,
            [
                value + np.float32(0.125 if one.name == name else 0)
                for one, value in zip(whole.parameters, whole.initial_values, strict=True)
            ],
        )
        for name in ("w", "b")
    }
    encoded = canonical.encode(spec)
    with refused(JobReason.MALFORMED, "model_digest"):
        scene.cores[0].jobs.start(encoded, moved["w"], ASKED)
    scene.cores[0].jobs.start(encoded, moved["b"], ASKED)  # the trained one's values come with each round
    scene.cores[1].jobs.start(encoded, MODEL, ASKED)
    assert run(scene, spec, 1).shape == (1,)


def test_helpers_that_were_told_other_sets_release_nothing_together(tmp_path: Path) -> None:
    """An ad server cannot see a difference of two sums: the shares do not add up."""
    scene = Sealed(tmp_path, **QUIET)
    one = frozen_job(scene, ("b",))
    other = replace(one, trained=("w",), model_digest=parse(MODEL, num_features=4, trained=("w",)).digest)
    scene.cores[0].jobs.start(canonical.encode(one), MODEL, ASKED)
    scene.cores[1].jobs.start(canonical.encode(other), MODEL, ASKED)
    first = AggregateShare.decode(scene.answer(0, one, 0, round_input(("b",))), 1)
    second = AggregateShare.decode(scene.answer(1, other, 0, round_input(("w",))), 4)
    with refused(JobReason.HELPERS_DISAGREE):
        combine(first, second)
    assert log2(1 + abs(int(first.vector[0]))) > 40  # blinded
    with refused(JobReason.JOB_CHANGED):
        scene.cores[0].jobs.start(canonical.encode(other), MODEL, ASKED)

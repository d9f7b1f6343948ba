"""The round at both helpers, against the reference, the plaintext sum and the rules about too few records."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from maskedlark.canonical import decode, digest, encode
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.model.losses import Loss
from maskedlark.numbers import field
from maskedlark.numbers.field import MODULUS
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.round import Evaluated, MaskedSum
from maskedlark.releases.samples import Samples
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR, PairKey
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.upload import SealedShare
from tests import reference
from tests.builders import (
    NOW,
    World,
    examples,
    helper_keys,
    helper_share,
    job_spec,
    of_shares,
    open_dataset,
    reports,
    world,
    zeros,
)
from tests.refusals import refused

NUM_VALUES = 6


def value(features: bytes, label: int, sensitivity: int) -> list[int]:
    """A stand-in for a clipped gradient.

    Integers that depend on every feature and the label, within the bound.
    """
    seed = digest("value", features, bytes([label]))
    return [
        int.from_bytes(seed[4 * i : 4 * i + 4], "little") % (2 * (sensitivity // 4) + 1) - sensitivity // 4
        for i in range(NUM_VALUES)
    ]


def masked_sum(of: World) -> Callable[[InputShares], MaskedSum]:
    sensitivity = of.task.clip.sensitivity

    def compute(shares: InputShares) -> MaskedSum:
        total = [0] * NUM_VALUES
        seen = b""
        for features, labels, masks in zip(shares.features, shares.labels, shares.mask_shares, strict=True):
            for label, mask in zip(labels.tolist(), masks.tolist(), strict=True):
                one = value(features.tobytes(), label, sensitivity)
                seen += digest("one", repr(one).encode())
                total = [(t + mask * v) % MODULUS for t, v in zip(total, one, strict=True)]
        return MaskedSum(
            vector=np.array(total, np.uint64), values_digest=digest("values", seen), sensitivity=sensitivity
        )

    return compute


def job(of: World, dataset_id: bytes, **changes: Any) -> JobSpec:
    return job_spec(of.task.task_id, **{"dataset_id": dataset_id, "rounds": 5, **changes})


def answers(
    of: World,
    shares: tuple[InputShares, InputShares],
    spec: JobSpec,
    *,
    weights: tuple[bytes, bytes] = (b"w", b"w"),
    round_index: int = 0,
) -> list[AggregateShare]:
    return [
        helper_share(
            of,
            spec,
            role,
            of_shares(shares[role], masked_sum(of)),
            records=len(shares[role]),
            num_values=NUM_VALUES,
            round_index=round_index,
            script=spec.round_transcript(round_index=round_index, weights=weights[role], numerics=b"n"),
        )
        for role in (0, 1)
    ]


def plaintext_sum(of: World, records: list[tuple[bytes, int | None]]) -> list[int]:
    vectors = [
        value(features, label, of.task.clip.sensitivity) for features, label in records if label is not None
    ]
    return [sum(column) for column in zip(*vectors, strict=True)] if vectors else [0] * NUM_VALUES


@settings(max_examples=8, deadline=None)
@given(
    count=st.integers(2, 60),
    rate=st.sampled_from([0.3, 0.8, 1.0]),
    seed=st.integers(0, 2**32),
    proof=st.booleans(),
)
def test_the_services_and_the_reference_agree_bit_for_bit(
    count: int, rate: float, seed: int, *, proof: bool
) -> None:
    of = world(labels={"kind": "classes", "size": 5, "default_label": 2}, num_decoys=2, proof=proof)
    random = Random(seed)
    helpers = tuple(
        reference.Helper(
            agreement=keys.agreement,
            hpke=X25519PrivateKey.from_private_bytes(keys.opening.secret_bytes()),
            key_id=keys.opening.key_id,
        )
        for keys in of.keys
    )
    both = (helpers[0], helpers[1])
    setting = reference.Setting(
        task_id=of.task.task_id,
        num_features=of.task.num_features,
        labels=range(5),
        default_label=2,
        num_decoys=2,
        time_bucket=of.task.time_bucket(NOW),
        min_batch_size=of.task.min_batch_size,
        job_digest=b"",
        sampling_numerator=round(rate * SAMPLING_DENOMINATOR),
        round_index=3,
        weights=b"some weights",
        numerics=b"n",
        is_proven=proof,
    )
    people = [(random.randbytes(4), random.choice([None, 0, 1, 2, 3, 4])) for _ in range(count)]
    sealed = [reference.make_report(setting, both, features, label, random) for features, label in people]

    prepared = [
        of.opener(role).open(
            [
                ShareForHelper(
                    report_id=one.report_id,
                    time_bucket=setting.time_bucket,
                    share=SealedShare(key_id=both[role].key_id, ciphertext=one.ciphertexts[role]),
                )
                for one in sealed
            ]
        )
        for role in (0, 1)
    ]
    assert all(one.admitted.is_admitted.all() for one in prepared)

    datasets = [open_dataset(of.task.task_id, one, one.admitted.is_admitted) for one in prepared]
    spec = job(of, datasets[0].dataset_id, sampling_numerator=setting.sampling_numerator)
    setting = replace(setting, job_digest=spec.digest)
    expected = reference.run(
        setting, both, sealed, lambda x, y: value(x, y, of.task.clip.sensitivity), NUM_VALUES
    )

    got = answers(
        of, (datasets[0].shares, datasets[1].shares), spec, weights=(b"some weights",) * 2, round_index=3
    )
    assert datasets[0].dataset_id == expected.dataset_id
    assert [one.vector.tolist() for one in got] == [list(one) for one in expected.shares]
    assert combine(got[0], got[1]).tolist() == expected.total
    of_id = dict(zip((one.report_id for one in sealed), people, strict=True))
    assert expected.total == plaintext_sum(of, [of_id[report_id] for report_id in expected.sampled])


def random_shares(of: World, count: int, seed: int) -> tuple[tuple[InputShares, InputShares], list[int]]:
    """Opened shares of `count` reports with extreme masks among random ones, and the sum that they must
    give."""
    random = Random(seed)
    extremes = [0, 1, MODULUS - 1, MODULUS // 2, 2**32]
    features = np.frombuffer(random.randbytes(4 * count), np.uint8).reshape(count, 4)
    labels = np.tile(np.array([0, 1], np.uint32), (count, 1))
    masks = [
        [
            [random.choice(extremes) if random.random() < 0.2 else random.randrange(MODULUS) for _ in (0, 1)]
            for _ in range(count)
        ]
    ]
    real = [random.choice([0, 1, None]) for _ in range(count)]
    masks.append(
        [
            [((1 if label == c else 0) - m) % MODULUS for c, m in enumerate(row)]
            for label, row in zip(real, masks[0], strict=True)
        ]
    )
    both = tuple(
        InputShares(features=features, labels=labels, mask_shares=np.array(one, np.uint64).reshape(count, 2))
        for one in masks
    )
    records = [(row.tobytes(), label) for row, label in zip(features, real, strict=True)]
    return (both[0], both[1]), plaintext_sum(of, records)


@pytest.mark.parametrize("count", [2, 3, 17, 256, 1_000, 5_000])
def test_masked_shares_recombine_to_the_plaintext_sum_for_any_masks(count: int) -> None:
    of = world()
    shares, expected = random_shares(of, count, count)
    first, second = answers(of, shares, job(of, bytes(32)))
    assert combine(first, second).tolist() == expected


def test_without_the_other_share_even_zeros_look_uniform() -> None:
    """All-zero values: a helper's share is the blind, and its bytes pass a chi-square test for uniformity."""
    of = world()
    spec = job(of, bytes(32))
    count = 1 << 14
    answer = helper_share(of, spec, 0, lambda _: zeros(of.task, count), records=3, num_values=count)
    counts = np.bincount(np.ascontiguousarray(answer.vector).view(np.uint8), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert 255 - 6 * np.sqrt(510) < chi_square < 255 + 6 * np.sqrt(510)


@pytest.mark.parametrize("difference", ["weights", "dataset", "task key"])
def test_helpers_that_were_shown_different_things_give_noise_and_are_found_out(difference: str) -> None:
    of = world()
    shares, expected = random_shares(of, 50, 5)
    spec = job(of, bytes(32))
    if difference == "weights":
        first, second = answers(of, shares, spec, weights=(b"w", b"v"))
    elif difference == "dataset":
        other, _ = random_shares(of, 50, 6)
        first, second = answers(of, (shares[0], other[1]), spec)
    else:
        stranger = world(keys=(of.keys[0], replace(helper_keys(), opening=of.keys[1].opening)))
        first, second = answers(of, shares, spec)[0], answers(stranger, shares, spec)[1]
    with refused(JobReason.HELPERS_DISAGREE):
        combine(first, second)
    garbage = field.to_signed(field.reconstruct(first.vector, second.vector))
    if (
        difference == "weights"
    ):  # the blinds do not cancel: what is left is of the field's size, not of a gradient's
        least, *others = np.sort(np.abs(garbage.astype(np.float64))).tolist()
        assert min(others) > 2.0**48
        assert least > 2.0**38  # one alone is smaller than 2^48 once in five thousand runs
        assert garbage.tolist() != expected


@pytest.mark.parametrize("count", [0, 1, 4])
def test_fewer_records_than_k_give_a_sum_of_nothing_with_matching_tags(count: int) -> None:
    of = world(min_batch_size=5)
    shares, _ = random_shares(of, count, 3)
    first, second = answers(of, shares, job(of, bytes(32)))
    assert combine(first, second).tolist() == [0] * NUM_VALUES
    assert (first.vector != 0).all()


def test_a_sample_smaller_than_k_gives_a_sum_of_nothing() -> None:
    of = world(min_batch_size=30)
    shares, _ = random_shares(of, 36, 3)
    rare = job(of, bytes(32), sampling_numerator=SAMPLING_DENOMINATOR // 4)
    assert [combine(*answers(of, shares, rare, round_index=r)).tolist() for r in range(3)] == [
        [0] * NUM_VALUES
    ] * 3


def summed_in_rounds(
    of: World, spec: JobSpec, records: int, summed: Callable[[Evaluated], MaskedSum], *, rounds: int
) -> None:
    """The first rounds of a job at helper 0, whose engine is `summed`."""
    for index in range(rounds):
        script = spec.round_transcript(round_index=index, weights=b"", numerics=b"")
        helper_share(of, spec, 0, summed, records=records, round_index=index, script=script)


@pytest.mark.parametrize(("rate", "k"), [(0.0005, 10), (0.01, 10), (0.1, 10), (0.1, 600), (1.0, 10)])
def test_a_round_evaluates_as_many_records_whatever_the_secret_sample_is(rate: float, k: int) -> None:
    of = world(min_batch_size=k)
    shares, _ = random_shares(of, 2_000, 3)
    spec = job(of, bytes(32), sampling_numerator=round(rate * SAMPLING_DENOMINATOR))
    seen = []

    def count(batch: InputShares) -> MaskedSum:
        seen.append((len(batch), int((batch.mask_shares != 0).any(axis=1).sum())))
        return zeros(of.task)

    summed_in_rounds(of, spec, len(shares[0]), of_shares(shares[0], count), rounds=20)
    assert {evaluated for evaluated, _ in seen} == {spec.records_evaluated(of.task, 2_000)}
    counted = {sampled for _, sampled in seen}
    assert len(counted) > 1 or counted == {0} or rate == 1.0
    assert all(sampled == 0 or sampled >= k for sampled in counted)


@pytest.mark.parametrize("reports", [1, 3])
def test_what_sums_a_round_is_told_how_many_reports_one_person_may_have(reports: int) -> None:
    of = world(unit="user" if reports > 1 else "report", reports_per_user=reports)
    seen: list[Evaluated] = []

    def keep(evaluated: Evaluated) -> MaskedSum:
        seen.append(evaluated)
        return zeros(of.task)

    summed_in_rounds(of, job(of, bytes(32)), 50, keep, rounds=2)
    assert [evaluated.reports for evaluated in seen] == [reports, reports]


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_every_part_of_a_dataset_has_its_share_of_the_records_that_fill_a_round_up(rate: float) -> None:
    of = world(min_batch_size=10)
    shares, _ = random_shares(of, 2_000, 3)
    spec = job(of, bytes(32), sampling_numerator=round(rate * SAMPLING_DENOMINATOR))
    seen: list[Evaluated] = []

    def keep(evaluated: Evaluated) -> MaskedSum:
        seen.append(evaluated)
        return zeros(of.task)

    summed_in_rounds(of, spec, len(shares[0]), keep, rounds=5)
    for evaluated in seen:
        is_other = ~evaluated.counts
        is_filling = evaluated.is_evaluated & is_other
        assert is_filling.sum() > 50
        for part in np.array_split(np.arange(2_000), 8):  # of the lowest ids, ..., of the highest
            share = is_filling.sum() * is_other[part].sum() / is_other.sum()
            assert abs(is_filling[part].sum() - share) <= 7 * np.sqrt(share) + 7


@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", "l2"), ("laplace", "l1")])
def test_each_helper_adds_noise_at_full_scale_once_per_coordinate(mechanism: str, norm: str) -> None:
    of = world(mechanism=mechanism, norm=norm, clip_norm=0.5)
    spec = job(of, bytes(32), noise_multiplier=2.0)
    count = 20_000
    got = [
        helper_share(of, spec, role, lambda _: zeros(of.task, count), records=3, num_values=count)
        for role in (0, 1)
    ]
    scale = 2.0 * 0.5 * 2**32
    assert spec.noise_units(of.task) == scale
    total = combine(got[0], got[1]).astype(np.float64)
    variance = 2 * scale**2 if mechanism == "gaussian" else 2 * 2 * scale**2
    assert abs(total.mean()) < 5 * np.sqrt(variance / count)
    assert abs(total.var() / variance - 1) < 0.08


def test_noise_is_refused_where_there_is_none_and_where_it_could_wrap() -> None:
    noisy = world(mechanism="gaussian")
    for multiplier in (0.0, 1e6):
        with pytest.raises(JobRefused) as refusal:
            job(noisy, bytes(32), noise_multiplier=multiplier).check_sums_fit(
                noisy.task, records=10, num_parameters=5
            )
        assert refusal.value.reason in (JobReason.NOISE_OUT_OF_RANGE, JobReason.OVERFLOW)
    fine = job(noisy, bytes(32), noise_multiplier=1.0)
    fine.check_sums_fit(noisy.task, records=1 << 20, num_parameters=1 << 20)
    wide = world(mechanism="gaussian", clip_norm=1024.0, frac_bits=40)
    with refused(JobReason.OVERFLOW):
        job(wide, bytes(32), noise_multiplier=0.01).check_sums_fit(
            wide.task, records=1 << 14, num_parameters=5
        )


@given(st.integers(0, 2**32), st.floats(0.01, 1.0))
def test_the_sample_is_binomial_and_secret_to_others(seed: int, rate: float) -> None:
    of = WORLD
    numerator = Samples.numerator(expected_batch_size=rate * 4_000, dataset_size=4_000)
    round_transcript = digest("t", seed.to_bytes(8, "little"))
    first, second = (of.pair(role).sample(round_transcript, 4_000, numerator) for role in (0, 1))
    assert (first == second).all()
    expected = 4_000 * rate
    assert abs(int(first.sum()) - expected) <= 7 * np.sqrt(4_000 * rate * (1 - rate)) + 1


def test_a_rate_of_one_takes_every_record() -> None:
    assert WORLD.pair(0).sample(bytes(32), 1_000, SAMPLING_DENOMINATOR).all()


def test_blinds_and_tags_hang_on_everything_in_the_transcript() -> None:
    base = job(WORLD, bytes(32))
    transcripts = {
        spec.round_transcript(round_index=index, weights=weights, numerics=numerics)
        for spec in (
            base,
            job(WORLD, bytes(32), noise_multiplier=1.0),
            job(WORLD, bytes([1] * 32)),
            job(WORLD, bytes(32), loss=Loss.POISSON),
        )
        for index in (0, 1)
        for weights in (b"", b"w")
        for numerics in (b"", b"n")
    }
    assert len(transcripts) == 32
    pair = WORLD.pair(0)
    blinds = {pair.blind(one, 4).tobytes() for one in transcripts}
    assert len(blinds) == 32


def test_blinds_cancel_between_the_helpers() -> None:
    first, second = (WORLD.pair(role).blind(bytes(32), 1_000) for role in (0, 1))
    assert field.reconstruct(first, second).tolist() == [0] * 1_000


def test_a_pair_key_needs_the_right_helper_and_a_usable_peer_key() -> None:
    with pytest.raises(InvalidTask, match="another agreement key"):
        PairKey.agree(WORLD.keys[0].agreement, WORLD.task, 1)
    low_order = replace(WORLD.task.helpers[1], agreement_key=bytes(32))
    with pytest.raises(InvalidTask, match="usable"):
        PairKey.agree(
            WORLD.keys[0].agreement, replace(WORLD.task, helpers=(WORLD.task.helpers[0], low_order)), 0
        )
    assert "redacted" in repr(WORLD.pair(0))


@pytest.mark.parametrize(
    "encoded",
    [b"", bytes(31), bytes(32), bytes(32 + 8 * NUM_VALUES - 1), bytes(32) + b"\xff" * 8 * NUM_VALUES],
)
def test_a_malformed_aggregate_share_is_a_typed_error(encoded: bytes) -> None:
    with refused(JobReason.MALFORMED):
        AggregateShare.decode(encoded, NUM_VALUES)


def test_an_aggregate_share_survives_its_bytes() -> None:
    share = AggregateShare(vector=np.arange(NUM_VALUES, dtype=np.uint64), agreement_tag=bytes(range(32)))
    again = AggregateShare.decode(share.encode(), NUM_VALUES)
    assert again.agreement_tag == share.agreement_tag
    assert (again.vector == share.vector).all()


def test_a_sum_function_that_bounds_its_values_by_more_than_the_task_is_a_bug() -> None:
    of = world()
    too_wide = zeros(of.task, sensitivity=of.task.clip.sensitivity + 1)
    with pytest.raises(AssertionError):
        helper_share(of, job(of, bytes(32)), 0, lambda _: too_wide, records=3)


def test_the_whole_way_from_examples_to_the_sum() -> None:
    of = world()
    given_examples = examples(of.task, 20)
    first, second = of.datasets(reports(of, given_examples))
    got = combine(*answers(of, (first.shares, second.shares), job(of, first.dataset_id)))
    assert got.tolist() == plaintext_sum(
        of, [(one.features.tobytes(), int(one.label or 0)) for one in given_examples]
    )


WORLD = world()


def test_a_report_whose_masks_add_to_anything_else_is_noticed_in_the_sum() -> None:
    of = world()
    shares, _ = random_shares(of, 50, 5)
    poisoned = np.array(shares[0].mask_shares)
    poisoned[7] = field.random_vector(2, seeded(9))
    spec = job(of, bytes(32))
    honest = combine(*answers(of, shares, spec))
    spec.check_sum_possible(of.task, honest, records=50)
    total = combine(*answers(of, (replace(shares[0], mask_shares=poisoned), shares[1]), spec))
    with refused(JobReason.SUM_OUT_OF_RANGE):
        spec.check_sum_possible(of.task, total, records=50)


def test_the_largest_possible_sum_is_accepted_and_one_more_is_not() -> None:
    of = world(mechanism="laplace", norm="l1")  # in L2 the length counts too: see test_possible_sums.py
    spec = job(of, bytes(32), noise_multiplier=1.0)
    largest = 50 * of.task.clip.sensitivity + spec.noise_bound(of.task, 2)
    for sign in (1, -1):
        spec.check_sum_possible(of.task, np.array([0, sign * largest], np.int64), records=50)
        with refused(JobReason.SUM_OUT_OF_RANGE):
            spec.check_sum_possible(of.task, np.array([0, sign * (largest + 1)], np.int64), records=50)
    spec.check_sum_possible(of.task, np.empty(0, np.int64), records=50)


def test_specs_that_are_equal_have_equal_bytes_so_a_digest_is_known_by_its_spec() -> None:
    spec = job(world(mechanism=Mechanism.NONE), bytes(32), noise_multiplier=0.0)
    assert spec.digest == digest("job", encode(spec))
    with pytest.raises(InvalidTask, match="noise_multiplier"):
        decode(JobSpec, encode(spec).replace(b'"noise_multiplier":0.0', b'"noise_multiplier":-0.0'))

"""What the size of a secret sample shows, through the real samplers and the real `aggregate`.

Two attacks of the ad server alone, which has made all reports of a dataset but one. Its own masks add to 10^6
on a coordinate of their own, so each sum tells how many of them were in it, at any noise.

The k rule: a sample of fewer than k records gives a sum of nothing. If k - 1 of the ad server's own are in a
sum, so is the one other record. The padding: a sample larger than what the work is padded to takes more work,
and shows by how much.

Both void amplification: whoever knows that a record is in a round faces that round's noise alone. Releases
before 24b992e counted amplification all the same; the audit shows that this is over the claim.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.field import MODULUS
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.noise import noise_vector
from maskedlark.privacy.sample_size import hides, least_batch
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import combine
from maskedlark.releases.round import MaskedSum, aggregate
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR, PairKey
from maskedlark.reports.input_shares import InputShares
from tests.audit.bounds import Guesses, lower
from tests.audit.part import Part
from tests.builders import World, of_shares, world
from tests.maskedlark.releases.test_split_noise import job

K: Final = 20
"""The default floor."""
RECORDS: Final = 2_000
STEPS: Final = 100
ROUNDS: Final = 1_000
NOISE: Final = 0.7
DELTA: Final = 0.01
TRIALS: Final = 2_000
"""Jobs of so many rounds: they catch amplification that is counted wrongly with a probability of .999."""
ERROR: Final = 0.002
_THRESHOLD: Final = 1.25
"""Of the log likelihood ratio; fixed beforehand, where so many jobs show most."""
_CANARY: Final = 0
_MASKS: Final = 10**6
_LARGE_TRIALS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many records were in each round of a job, and whether the canary was one of them."""

    counts: NDArray[np.int64]
    with_canary: NDArray[np.bool_]

    def resolved(self) -> NDArray[np.intp]:
        """The rounds in which the ad server sees its own K - 1 in a sum that is not of nothing."""
        return np.flatnonzero(self.with_canary & (self.counts == K))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What many jobs showed.

    Attributes:
        rounds: Of all jobs together.
        by_k: In how many the k rule showed that the record took part.
        by_work: In how many the work was more than what it is padded to.
        by_old_work: In how many it would be more than what it was padded to before 24b992e.
        epsilon: What the k rule alone proves at DELTA, but with a probability of ERROR.
    """

    rounds: int
    by_k: int
    by_work: int
    by_old_work: int
    epsilon: float


def poisson(seed: int) -> Part:
    """The part on samples that each round draws anew."""
    return examine("poisson", None, seed)


def allocation(seed: int) -> Part:
    """The part on random allocation."""
    return examine("allocation", STEPS, seed)


def examine(name: str, steps: int | None, seed: int, *, trials: int = TRIALS) -> Part:
    """Small samples, charged as public ones; and the smallest ones whose secrecy is counted."""
    of = world(mechanism="gaussian", min_batch_size=K, clip_norm=1.0, delta=1e-3)
    small = _job(of, steps, RECORDS // STEPS)
    hidden = least_batch(dataset_size=RECORDS, k=K)
    large = _job(of, None if steps is None else RECORDS // hidden, hidden)
    shown, hidden_shown = (
        observe(of, spec, seed, jobs) for spec, jobs in ((small, trials), (large, trials // _LARGE_TRIALS))
    )
    claimed = _epsilon(replace(small, is_sample_public=True).charge(of.task, ROUNDS))
    before = _epsilon(_counted_all_the_same(of, small))
    seen = lower(hidden_shown.by_k + hidden_shown.by_work, hidden_shown.rounds, ERROR)
    is_hidden = hides(dataset_size=RECORDS, rate=large.sampling_rate, k=K)
    return Part(
        claims={
            f"{name}_k_rule_under_claim": shown.epsilon <= claimed,
            f"{name}_secret_sizes_under_claim": is_hidden and seen <= large.charge(of.task, 1).exposure,
            f"{name}_emptied_small_samples_caught": shown.epsilon > before,
            f"{name}_old_padding_caught": lower(shown.by_old_work, shown.rounds, ERROR) > 0,
        },
        figures={
            f"{name}_sizes": {
                "k_rule_claimed": claimed,
                "k_rule_claimed_before": before,
                "k_rule_shown": shown.epsilon,
                "resolved": [shown.by_k, shown.by_old_work, shown.rounds],
                "secret_resolved": [hidden_shown.by_k, hidden_shown.by_work, hidden_shown.rounds],
            }
        },
    )


def observe(of: World, spec: JobSpec, seed: int, jobs: int) -> Shown:
    """Many jobs, and for each the same with the canary's contribution zeroed."""
    pairs = tuple(PairKey(secret=seeded(seed, "pair")(32), role=role) for role in (0, 1))
    noise = seeded(seed, "noise of both helpers")
    by_k = by_work = by_old_work = hits = alarms = 0
    padded = spec.records_evaluated(of.task, RECORDS)
    for number in range(jobs):
        one = replace(spec, job_id=number.to_bytes(16, "little"))
        sizes = _sizes(one, pairs[0])
        by_work += int((sizes.counts > padded).sum())
        by_old_work += int((sizes.counts > _padded_before(spec)).sum())
        resolved = sizes.resolved()
        by_k += len(resolved)
        seen = [
            [_seen(of, one, pairs, int(index), noise, is_in=is_in) for index in resolved]
            for is_in in (True, False)
        ]
        hits, alarms = hits + _says_in(seen[0]), alarms + _says_in(seen[1])
    guesses = Guesses(hits=hits, with_canary=jobs, false_alarms=alarms, without_canary=jobs)
    return Shown(
        rounds=jobs * ROUNDS,
        by_k=by_k,
        by_work=by_work,
        by_old_work=by_old_work,
        epsilon=guesses.rates(ERROR).epsilon(DELTA),
    )


def _sizes(spec: JobSpec, pair: PairKey) -> Sizes:
    """The sizes of a job's samples, as a helper draws them."""
    counts, with_canary = np.zeros(ROUNDS, np.int64), np.zeros(ROUNDS, np.bool_)
    if spec.epoch_steps is None:
        for index in range(ROUNDS):
            rows = pair.sample(_script(spec, index), RECORDS, spec.sampling_numerator)
            counts[index], with_canary[index] = np.count_nonzero(rows), rows[_CANARY]
        return Sizes(counts=counts, with_canary=with_canary)
    for epoch, start in enumerate(range(0, ROUNDS - spec.epoch_steps + 1, spec.epoch_steps)):
        slots = pair.slots(spec.digest, epoch, RECORDS, spec.epoch_steps).astype(np.int64)
        counts[start : start + spec.epoch_steps] = np.bincount(slots, minlength=spec.epoch_steps)
        with_canary[start + slots[_CANARY]] = True
    return Sizes(counts=counts, with_canary=with_canary)


def _seen(
    of: World, spec: JobSpec, pairs: tuple[PairKey, ...], index: int, noise: Any, *, is_in: bool
) -> float:
    """The canary's coordinate of a round, in units of its sensitivity, from both helpers' answers."""
    unit = of.task.clip.sensitivity

    def summed(batch: InputShares) -> MaskedSum:
        is_canary = batch.features[:, 0] == 1
        totals = [sum(batch.mask_shares[rows].ravel().tolist()) for rows in (~is_canary, is_canary)]
        vector = np.array([one * unit % MODULUS for one in totals], np.uint64)
        return MaskedSum(vector=vector, values_digest=bytes(32), sensitivity=unit)

    answers = [
        aggregate(
            task=of.task,
            job=spec,
            pair=pair,
            round_index=index,
            round_transcript=_script(spec, index),
            records=len(_shares(role, is_in=is_in)),
            masked_sum=of_shares(_shares(role, is_in=is_in), summed),
            num_values=2,
            noise=lambda mechanism, scale, count: noise_vector(mechanism, scale, count, noise),
        )
        for role, pair in enumerate(pairs)
    ]
    own, canary = combine(*answers).tolist()
    if round(own / (_MASKS * unit)) != K - 1:
        raise AssertionError("a sum does not tell the ad server how many of its own records it is of")
    return float(canary / unit)


def _shares(role: int, *, is_in: bool) -> InputShares:
    """All of the masks at one helper: what hides them is not what is tried here."""
    features, masks = np.zeros((RECORDS, 4), np.uint8), np.zeros((RECORDS, 1), np.uint64)
    features[_CANARY, 0] = 1
    if role == 0:
        masks[:], masks[_CANARY] = _MASKS, int(is_in)
    return InputShares(features=features, labels=np.zeros((RECORDS, 1), np.uint32), mask_shares=masks)


def _says_in(seen: list[float]) -> bool:
    """Whether the likelihood ratio of a job's resolved rounds is above the threshold."""
    return sum(one - 0.5 for one in seen) / (2 * NOISE**2) >= _THRESHOLD


def _job(of: World, steps: int | None, batch: int) -> JobSpec:
    rate = SAMPLING_DENOMINATOR * batch // RECORDS
    return job(
        of,
        rounds=ROUNDS,
        noise_multiplier=NOISE,
        epoch_steps=steps,
        sampling_numerator=rate if steps is None else SAMPLING_DENOMINATOR // steps,
    )


def _script(spec: JobSpec, index: int) -> bytes:
    """Stands for a round's transcript, which weights are in."""
    return spec.job_id + index.to_bytes(8, "little")


def _epsilon(charged: Charge) -> float:
    return spent([charged], DELTA).ad_server


def _counted_all_the_same(of: World, spec: JobSpec) -> Charge:
    """The charge of before 24b992e: amplification, whatever a sample's size shows."""
    return replace(spec.charge(of.task, ROUNDS), exposure=0.0)


def _padded_before(spec: JobSpec) -> int:
    """The padding of before 24b992e."""
    expected = RECORDS * spec.sampling_numerator >> 32
    return expected + int(4 * expected**0.5) + 4

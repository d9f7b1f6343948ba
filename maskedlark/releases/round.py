"""Step 7: one round at one helper, as a pure function from a dataset's size and sums to an aggregate share.

And step 8's first half.

    sample -> pad -> masked, clipped sum in the field -> blind -> noise -> aggregate share, with a tag of what
    was summed

The caller (helper/releases/rounds.py) has checked the job. It commits the charge and the answer before
anything is released.

The work of a round does not depend on the secret sample: f is evaluated on a number of records that follows
from public settings: the sampled ones, and others with mask shares of zero. So the time of an answer does not
reveal the size of the sample, even if it is below k.
"""

from collections.abc import Callable
from dataclasses import field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.noise import NoiseSource
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, blind, units_of_each_helper
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.task import Task


@frozen
class MaskedSum:
    """What a function f gives of a batch: see `SumFunction`.

    Attributes:
        vector: (P,) sum over records and candidate labels of mask_share * value, in the field.
        values_digest: 32 bytes that depend on every value summed, and on no mask: equal at the two helpers if
            (and but for a collision only if) they summed the same values of the same records.
        sensitivity: A bound on the clip norm of every value summed, an integer in units of 2^-frac_bits: what
            the noise is calibrated to.
    """

    vector: FieldVector = field(repr=False)
    values_digest: bytes
    sensitivity: int


@frozen
class Evaluated:
    """The records on which a round evaluates f, by their ranks: their places in the canonical order.

    Attributes:
        is_evaluated: bool (n,).
        counts: bool (n,) whose mask shares count; the others' are taken as zero.
        reports: How many of them may be one person's: what hides how many of some records are sampled has
            room for all of these.
    """

    is_evaluated: NDArray[np.bool_] = field(repr=False)
    counts: NDArray[np.bool_] = field(repr=False)
    reports: int = 1

    def of(self, shares: InputShares, ranks: NDArray[np.intp]) -> InputShares:
        """Select records by their ranks (m,), given a row of shares for each rank."""
        chosen = np.flatnonzero(self.is_evaluated[ranks])
        counts = self.counts[ranks[chosen]]
        masks = np.where(counts[:, None], shares.mask_shares.take(chosen, 0), np.uint64(0))
        features, labels = shares.features.take(chosen, 0), shares.labels.take(chosen, 0)
        return InputShares(features=features, labels=labels, mask_shares=masks)


SumFunction = Callable[[Evaluated], MaskedSum]
"""f of one round: from the records to evaluate to their masked sum.

No records give zeros.
"""


def aggregate(
    *,
    task: Task,
    job: JobSpec,
    pair: PairKey,
    round_index: int,
    round_transcript: bytes,
    records: int,
    masked_sum: SumFunction,
    num_values: int,
    noise: NoiseSource,
    clip: Clip | None = None,
) -> AggregateShare:
    """Compute one helper's aggregate share of a round. Called by a helper.

    `records` is how many the dataset has. `clip` is the round's own bound in an adaptive job; without it the
    noise is that of the largest one.

    Guarantees: without the other helper's answer to the same transcript the share is uniform. The sum of both
        shares is the sampled records' clipped values plus both helpers' full-scale noise. With fewer than
        min_batch_size records in the dataset or in the sample, the sum is of no records: noise around zero,
        of the same shape.
    """
    is_sampled = job.draw_sample(pair, round_index, round_transcript, records)
    # Never an early return: a round with too few records does the same work, and its noise hides that.
    is_enough = int(is_sampled.sum()) >= task.min_batch_size
    summed = masked_sum(
        _choose_evaluated(
            is_sampled,
            partial(pair.padding, round_transcript),
            is_enough=is_enough,
            at_least=job.records_evaluated(task, records),
            reports=task.reports_per_user,
        )
    )
    bound = clip or job.clip(task)
    # The sum function says how large its values can be, and noise is calibrated to that: it must not be its
    # own judge.
    if summed.sensitivity > bound.released_sensitivity or bound.sensitivity > job.clip(task).sensitivity:
        raise AssertionError("the sum function's bound on its values is larger than the job allows")
    return blind(
        pair=pair,
        release_transcript=round_transcript,
        vector=summed.vector,
        values_digest=summed.values_digest,
        noise=noise(
            task.mechanism, units_of_each_helper(task, job.noise_multiplier, summed.sensitivity), num_values
        ),
    )


def _choose_evaluated(
    is_sampled: NDArray[np.bool_],
    padding: Callable[[int, int], NDArray[np.bool_]],
    *,
    is_enough: bool,
    at_least: int,
    reports: int,
) -> Evaluated:
    """Return the sampled records among enough others; the sampled ones count, if they are enough.

    The others are drawn from the pair's key: any part of a dataset has its share of them, whoever chose the
    ids of its reports, so that the part's work does not tell how many they are.
    """
    others = np.flatnonzero(~is_sampled)
    # Larger than at_least with a charged probability only (`sample_size`): then the work shows the sample's
    # size.
    missing = min(len(others), max(0, at_least - int(is_sampled.sum())))
    chosen = is_sampled.copy()
    chosen[others[padding(len(others), missing)]] = True
    return Evaluated(is_evaluated=chosen, counts=is_sampled & is_enough, reports=reports)

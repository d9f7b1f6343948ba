"""The batches of an order hold what was sampled, and as many others as the order is padded to."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.datasets.segments import RowShape, SegmentRows
from helper.executors import summing
from helper.executors.gathering import gather
from maskedlark.interrupt import never
from maskedlark.releases.round import Evaluated

SHAPE = RowShape(features=3, candidates=2, keys=0, columns=0)
SIZE = 7


def drawn(records: int, draw: np.random.Generator) -> SegmentRows:
    """A segment of records that are all different."""
    rows = SHAPE.empty(records)
    rows.report_ids[:] = 0
    rows.shares.features[:] = draw.integers(0, 256, rows.shares.features.shape, np.uint8)
    rows.shares.labels[:] = draw.integers(0, 1 << 32, rows.shares.labels.shape, np.uint32)
    rows.shares.mask_shares[:] = draw.integers(1, 1 << 63, rows.shares.mask_shares.shape, np.uint64)
    return rows


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summing, "SEGMENT_RECORDS", SIZE)
        yield


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    rate=st.sampled_from([0.0, 0.3, 1.0]),
    work=st.integers(0, 60),
    seed=st.integers(0, 99),
)
def test_batches_hold_the_sampled_records_and_others_behind_them(
    sizes: list[int], rate: float, work: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    held = [drawn(size, draw) for size in sizes]
    records = sum(sizes)
    evaluated = Evaluated(is_evaluated=draw.random(records) < rate, counts=draw.random(records) < 0.7)
    found = list(gather(held, evaluated, work, never))
    features, labels, masks = (
        np.concatenate([getattr(one.shares, name) for one in held])
        for name in ("features", "labels", "mask_shares")
    )
    is_evaluated = evaluated.is_evaluated
    sampled, others = np.flatnonzero(is_evaluated), np.flatnonzero(~is_evaluated)
    places = [*sampled, *others[: max(0, work - len(sampled))]]
    masks[~(is_evaluated & evaluated.counts)] = 0
    assert (np.concatenate([one.features for one in found]) == features[places]).all()
    assert (np.concatenate([one.labels for one in found]) == labels[places]).all()
    assert (np.concatenate([one.mask_shares for one in found]) == masks[places]).all()
    assert [len(one) for one in found] == (
        [SIZE] * (len(places) // SIZE) + [len(places) % SIZE] * (len(places) % SIZE > 0) or [0]
    )


def test_what_is_gathered_ends_when_it_is_interrupted() -> None:
    def leave() -> None:
        raise InterruptedError

    rows = drawn(5, np.random.default_rng(0))
    everything = Evaluated(is_evaluated=np.ones(5, np.bool_), counts=np.ones(5, np.bool_))
    with pytest.raises(InterruptedError):
        next(gather([rows], everything, 5, leave))

"""Reports of a task with a measurement, opened, at both helpers.

As sealing and opening would give them, without the sealing.
"""

from collections import Counter
from functools import partial
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adserver.peers.replies import QueryAnswer
from adserver.records.dataset_state import DatasetState
from adserver.store.datasets import Dataset
from maskedlark.numbers.field import from_signed, share
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import Randomness, seeded
from maskedlark.releases.discovery import DiscoverySpec, answer_discovery
from maskedlark.releases.grouping import answer_query
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.reports.measurement import Measurement
from tests.builders import NOW, World, world

DATASET = b"d" * 32
SHOP = {
    "min_cell_count": 1,
    "values": [
        {"name": "click", "low": 0, "high": 1},
        {"name": "purchase", "low": -5, "high": 100, "is_clamped": True, "bucket_starts": [-5, 0, 1, 20, 50]},
    ],
    "keys": [
        {"name": "campaign"},
        {"name": "place", "size": 3, "categories": ["seattle", "oslo", "lima"]},
        {"name": "language", "size": 4},
    ],
}


def measuring_world(measurement: dict[str, Any] | None = None, **changes: Any) -> World:
    """A task that measures; without noise unless changed."""
    return world(measurement=measurement or SHOP, min_batch_size=1, **changes)


def columns_of(measurement: Measurement, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """What reports share of their values (n, V): (n, W)."""
    rows = [
        [
            1,
            *(
                column
                for value, one in zip(measurement.values, held, strict=True)
                for column in value.encode(value.within(one))
            ),
        ]
        for held in values.tolist()
    ]
    return np.array(rows, np.int64).reshape(len(values), measurement.num_columns)


def opened(
    of: World, keys: NDArray[np.uint32], columns: NDArray[np.int64], randomness: Randomness
) -> tuple[InputShares, InputShares]:
    """Both helpers' shares of reports with these keys (n, K) and shared columns (n, W)."""
    count, candidates = len(keys), of.task.num_candidates
    both = share(from_signed(columns.reshape(-1)), randomness)
    first, second = (
        InputShares(
            features=np.zeros((count, of.task.num_features), np.uint8),
            labels=np.zeros((count, candidates), np.uint32),
            mask_shares=np.zeros((count, candidates), np.uint64),
            measured=MeasuredShares(keys=keys, value_shares=one.reshape(columns.shape)),
        )
        for one in both
    )
    return first, second


def dataset_of(of: World, size: int) -> Dataset:
    """The ad server's record of them."""
    return Dataset(
        handle=b"h" * 16,
        task_id=of.task.task_id,
        state=DatasetState.COMMITTED,
        created_at=NOW,
        received=size,
        size=size,
        view_mismatch=0,
        dataset_id=DATASET,
        dropped=(Counter(), Counter()),
    )


class MemoryQueryHelper:
    """One honest helper of queries, without ledger, wire or disk.

    Its noise is drawn anew for each query from a seed.
    """

    def __init__(self, of: World, role: int, shares: InputShares, seed: int = 0) -> None:
        self._of = of
        self._role = role
        self._shares = shares
        self._randomness = seeded(seed, f"noise of helper {role}")
        self.asked: list[AnyQuery] = []

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        self.asked.append(query)
        task, pair = self._of.task, self._of.pair(self._role)
        if isinstance(query, DiscoverySpec):
            answered = answer_discovery(
                task=task, spec=query, pair=pair, role=self._role, shares=self._shares
            )
        else:
            assert isinstance(query, QuerySpec)
            noise = partial(noise_vector, randomness=self._randomness)
            domains = query.decode_domains(beside)
            answered = answer_query(
                task=task, spec=query, pair=pair, shares=self._shares, domains=domains, noise=noise
            )
        assert len(answered.vector) == length
        everything = [
            charge
            for one in {one.query_id: one for one in self.asked}.values()
            for charge in one.charges(task)
        ]
        return QueryAnswer(share=answered, dataset_spent=spent(everything, task.delta))

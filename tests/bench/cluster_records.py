"""Random records in segments of any size, what rounds sum of them, and the secrets that this has."""

from pathlib import Path

import numpy as np

from helper.datasets import segments
from helper.datasets.records import DatasetRecords
from helper.datasets.segments import RowShape
from helper.datasets.vault import Vault
from helper.executors.clustered import ClusterExecutor
from helper.executors.fleet import Fleet
from helper.executors.local import LocalExecutor
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.numbers.field import random_vector, to_bytes
from maskedlark.randomness import derive_key, system_randomness
from maskedlark.releases.round import Evaluated, MaskedSum
from tests.bench.drawn_records import gradient
from tests.builders import examples, reports, shares_for, world
from tests.helper.stored import commit, vault_in

CANARIES = 8
REPORTS = 2_000
FEATURES = 32
SIZES = (1 << 10, 1 << 14, 1 << 16)
CANARY_BYTES = 16


class Bench:
    """A model, and random datasets in segments of some size."""

    def __init__(self, folder: Path, records: int) -> None:
        self.count, self.folder = records, folder
        self.storage_key = system_randomness(32)
        self.gradient = gradient(FEATURES, 64)
        self.features = np.frombuffer(system_randomness(records * FEATURES), np.uint8).reshape(-1, FEATURES)
        self.masks = random_vector(2 * records, system_randomness).reshape(-1, 2)
        size = sum(one.values.size for one in self.gradient.weights)
        self.noise = random_vector(size, system_randomness)
        self.local = LocalExecutor(1)

    def key_for(self, context: bytes) -> bytes:
        return derive_key(self.storage_key, b"bench", context)

    def dataset(self, size: int) -> DatasetRecords:
        """The same records, in segments of so many."""
        shape = RowShape(features=FEATURES, candidates=2, keys=0, columns=0)
        vault, dataset = (
            self._in_segments_of(size, vault_in(self.folder / f"of-{size}", self.key_for)),
            bytes(32),
        )
        writer, rows = vault.begin(shape, "ads.example"), shape.empty(self.count)
        rows.report_ids[:] = np.arange(self.count * 16, dtype=np.uint64).astype(np.uint8).reshape(-1, 16)
        rows.shares.features[:], rows.shares.mask_shares[:] = self.features, self.masks
        rows.shares.labels[:] = [0, 1]
        vault.add(writer, rows)
        ranks = np.random.default_rng(0).permutation(self.count).astype(np.uint32)
        commit(vault, writer, dataset, ranks)
        return DatasetRecords(
            count=self.count,
            pieces=lambda interrupt: self._in_segments_of(size, vault).pieces(dataset, interrupt),
            sealed=lambda interrupt: self._in_segments_of(size, vault).read_sealed(dataset, interrupt),
        )

    def _in_segments_of(self, size: int, vault: Vault) -> Vault:
        """Write and read as a helper whose segments are of this size; a dataset at a time."""
        segments.SEGMENT_RECORDS = size  # type: ignore[misc] # the one place that changes it
        return vault

    def sampled(self, seed: int) -> Evaluated:
        """About half of the records evaluated, and half of those counting."""
        draw = np.random.default_rng(seed)
        is_evaluated = draw.random(self.count) < 0.5
        return Evaluated(is_evaluated=is_evaluated, counts=is_evaluated & (draw.random(self.count) < 0.5))

    def sum_here(self, records: DatasetRecords, seed: int) -> MaskedSum:
        return self.local.masked_sum(self.gradient, records, self.sampled(seed), never)

    def secrets(self, records: DatasetRecords) -> dict[str, list[bytes]]:
        """What must be nowhere in Ray, by kind, as bytes that are long enough to occur nowhere by chance."""
        places = range(0, self.count, max(1, self.count // CANARIES))
        return {
            "features": [self.features[place].tobytes()[:CANARY_BYTES] for place in places],
            "mask shares": [self.masks[place].tobytes() for place in places],
            "segment keys": [one.key for one in records.sealed(never)[:1]],
            "weights": [weights.encode(self.gradient.weights)[200:232]],
            "model": [self.gradient.file.read()[-200:-168]],
            "noise": [to_bytes(self.noise)],
        }


def opened_by_workers(fleet: Fleet, local: LocalExecutor) -> dict[str, list[bytes]]:
    """Let workers open reports; what must be nowhere of it: the keys, and what they found."""
    of = world(num_features=FEATURES)
    opener, given = of.opener(0), shares_for(reports(of, examples(of.task, REPORTS)), 0)
    prepared = ClusterExecutor(fleet, local, opens_shares=True).open(opener, given)
    if not prepared.admitted.is_admitted.all():
        raise AssertionError("workers open honest reports")
    keys = [*(key.secret_bytes() for key in opener.opening_keys), opener.view_key.secret_bytes()]
    places, found = range(0, REPORTS, REPORTS // CANARIES), prepared.shares
    return {
        "keys that open reports": keys,
        "opened features": [found.features[place].tobytes()[:CANARY_BYTES] for place in places],
        "opened mask shares": [found.mask_shares[place].tobytes() for place in places],
    }

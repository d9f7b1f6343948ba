"""Datasets of drawn records, as a helper stores them, of any size: written segment by segment, never all in
memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helper.datasets.records import DatasetRecords
from helper.datasets.segments import RowShape, SegmentSlice
from helper.datasets.vault import Vault
from helper.executors.executor import Gradient, ModelFile
from helper.gradient.exact.engine import ExactEngine
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import MODULUS
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import derive_key, system_randomness
from maskedlark.releases.round import Evaluated, MaskedSum
from tests.helper.stored import commit, vault_in

CHUNK = 1 << 16
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
CLIP = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)
DATASET = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A stored dataset of so many records: with a piece after the other from the disk, or all in memory."""

    vault: Vault
    count: int

    @classmethod
    def write(
        cls, folder: Path, records: int, features: int, told: Callable[[int], None] = lambda _: None
    ) -> "Drawn":
        """Draw records, and store them in a random order; `told` hears how many there are by now."""
        key, draw = system_randomness(32), np.random.default_rng(1)
        vault = vault_in(folder, lambda context: derive_key(key, b"bench", context))
        shape = RowShape(features=features, candidates=2, keys=0, columns=0)
        writer = vault.begin(shape, "ads.example")
        for start in range(0, records, CHUNK):
            rows = shape.empty(min(CHUNK, records - start))
            rows.report_ids[:] = np.frombuffer(draw.bytes(rows.report_ids.size), np.uint8).reshape(-1, 16)
            rows.shares.features[:] = np.frombuffer(draw.bytes(rows.shares.features.size), np.uint8).reshape(
                -1, features
            )
            rows.shares.labels[:] = [0, 1]
            rows.shares.mask_shares[:] = draw.integers(0, MODULUS, rows.shares.mask_shares.shape, np.uint64)
            vault.add(writer, rows)
            told(start + len(rows))
        commit(vault, writer, DATASET, draw.permutation(records).astype(np.uint32))
        return cls(vault=vault, count=records)

    @property
    def on_disk(self) -> DatasetRecords:
        """As a helper reads a dataset that has no room in its memory."""
        return DatasetRecords(
            count=self.count,
            pieces=lambda interrupt: self.vault.pieces(DATASET, interrupt),
            sealed=lambda interrupt: self.vault.read_sealed(DATASET, interrupt),
        )

    def in_memory(self) -> DatasetRecords:
        """As a helper holds a dataset that has room in its memory."""
        piece = SegmentSlice.whole(self.vault.read(DATASET))
        return DatasetRecords(count=self.count, pieces=lambda _: iter((piece,)), sealed=self.on_disk.sealed)

    def sampled(self, rate: float, seed: int) -> Evaluated:
        """About this share of the records, all of which count."""
        chosen = np.random.default_rng(seed).random(self.count, np.float32) < rate
        return Evaluated(is_evaluated=chosen, counts=chosen)


def gradient(features: int, hidden: int, *, threads: int = 1) -> Gradient:
    """A network of one hidden layer, at its initial weights, with so many threads on this machine."""
    onnx = dense_network([features, hidden, 1], "relu", seed=1)
    model = parse(onnx, num_features=features)
    return Gradient(
        engine=ExactEngine(model, LOSS, CLIP, threads=threads),
        weights=tuple(weights.quantise(values) for values in model.initial_values),
        file=ModelFile(read=lambda: onnx, num_features=features),
        loss=LOSS,
        clip=CLIP,
    )


def differing(first: MaskedSum, second: MaskedSum) -> int:
    """How many bytes of two sums and their digests differ."""
    one, other = (sum_.vector.tobytes() + sum_.values_digest for sum_ in (first, second))
    return sum(a != b for a, b in zip(one, other, strict=True))

"""A dataset of 13 segments at one helper, and a cluster of threads that may work on it."""

from pathlib import Path
from typing import Self

import numpy as np

from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Gradient, ModelFile, Scoring
from helper.executors.local import LocalExecutor
from helper.gradient.choose import choose_engine
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.releases.round import Evaluated, MaskedSum
from tests.helper.executors.in_process import ThreadFleet
from tests.helper.parties import MODEL, NO_WORKERS, WEIGHTS, Scene, make_model
from tests.stores import InMemory

RECORDS = 50
SEGMENTS = 13
PARSED = parse(MODEL, num_features=4)
TENSORS = weights.decode(WEIGHTS, PARSED.parameters)
FILE = ModelFile(read=lambda: MODEL, num_features=4)
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


class Site:
    """A dataset of 13 segments at one helper, and a cluster that may work on it."""

    def __init__(self, folder: Path, store: InMemory | None = None) -> None:
        self.scene = Scene(folder)
        self.scene.restart(segments=store)
        dataset = self.scene.seal(RECORDS)
        self.records = self.scene.cores[0].datasets.records(dataset, self.scene.task_id)
        self.fleet = ThreadFleet()
        self.local = LocalExecutor(NO_WORKERS)
        self.cluster = ClusterExecutor(self.fleet, self.local)
        self.gradient = Gradient(
            engine=choose_engine(PARSED, LOSS, self.scene.task.clip, 2),
            weights=TENSORS,
            file=FILE,
            loss=LOSS,
            clip=self.scene.task.clip,
        )

    def __enter__(self) -> Self:
        assert len(self.records.sealed(never)) == SEGMENTS
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def both(self, rate: float = 0.5, seed: int = 3) -> tuple[MaskedSum, MaskedSum]:
        """What this machine sums, and what the cluster does."""
        chosen = sampled(rate, seed)
        first, second = (
            one.masked_sum(self.gradient, self.records, chosen, never) for one in (self.local, self.cluster)
        )
        return first, second

    def assert_equal(self, rate: float = 0.5, seed: int = 3) -> None:
        local, clustered = self.both(rate, seed)
        assert clustered.vector.tobytes() == local.vector.tobytes()
        assert clustered.values_digest == local.values_digest
        assert clustered.sensitivity == local.sensitivity

    def orders(self) -> list[int]:
        """How many messages each worker has passed."""
        return [len(worker.passed) for worker in self.fleet.joined.values()]


def sampled(rate: float, seed: int = 3) -> Evaluated:
    draw = np.random.default_rng(seed)
    is_evaluated = draw.random(RECORDS) < rate
    return Evaluated(is_evaluated=is_evaluated, counts=is_evaluated & (draw.random(RECORDS) < 0.8))


def scoring_of(outputs: int) -> Scoring:
    onnx = make_model(outputs=outputs)
    model = parse(onnx, num_features=4)
    return Scoring(
        model=model,
        loss=LOSS if outputs == 1 else Loss.CROSS_ENTROPY,
        weights=tuple(weights.quantise(value) for value in model.initial_values),
        num_bins=10,
        file=ModelFile(read=lambda: onnx, num_features=4),
    )

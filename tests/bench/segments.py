"""Time and memory of a large dataset at one helper: prepared, put in order, stored, and summed by segments.

    make bench-segments ARGS="--records 10000000 --json"
    make bench-segments ARGS="--segments file:///tmp/objects"       # in object storage

Shares are drawn, not opened, and the ledger takes nothing: what is measured is what a helper does beside
opening (`make bench-ingest`) and its database. The dataset has no room in memory, so each round reads it from
the disk. Peak memory is that of the whole process, imports included (`base_mb`).
"""

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import insert

from helper.datasets.fair_cache import FairCache
from helper.datasets.preparing import MAX_CHUNK_BYTES, PreparedTotals
from helper.executors.summing import sum_batches
from helper.gradient.exact.engine import ExactEngine
from helper.ledger.ledger import Ledger
from helper.ledger.manifests import add_manifest
from helper.ledger.records import Manifest
from helper.ledger.schema import DATASETS
from maskedlark import canonical
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import MODULUS
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import AdmittedSet, PreparedShares, ShareColumns
from maskedlark.reports.input_shares import InputShares
from maskedlark.runtime.bucket import open_bucket
from tests.bench.harness import bench_parser, show
from tests.helper.parties import FLOORS, Scene, make_task
from tests.progress import shown

FEATURES: Final = 30
CHUNK: Final = 16_384


class Drawn:
    """Takes the opening pool's place: as many shares as were asked for, drawn."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._draw = np.random.default_rng(1)

    def open(self, _: object, incoming: Sequence[object]) -> PreparedShares:
        count = len(incoming)
        table = np.frombuffer(self._draw.bytes(32 * count), np.uint8).reshape(count, 32)
        return PreparedShares(
            report_ids=np.ascontiguousarray(table[:, :16]),
            shares=InputShares(
                features=np.frombuffer(self._draw.bytes(self._features * count), np.uint8).reshape(count, -1),
                labels=np.tile(np.array([0, 1], np.uint32), (count, 1)),
                mask_shares=self._draw.integers(0, MODULUS, (count, 2), np.uint64),
            ),
            admitted=AdmittedSet(
                is_admitted=np.ones(count, np.bool_),
                view_tags=np.ascontiguousarray(table[:, 16:]),
                dropped=Counter(),
            ),
        )


def only_counted(count: int) -> ShareColumns:
    """So many shares of which nothing is looked at."""
    empty, none = [b""] * count, range(count)
    return ShareColumns(report_ids=empty, time_buckets=none, key_ids=none, ciphertexts=empty)


class NoLedger:
    """Takes the ledger's place: nothing is used yet, and everything is taken.

    Of it only the manifest is kept.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def find_used(self, *_: object) -> set[bytes]:
        return set()

    def add_dataset(
        self, dataset_id: bytes, task_id: bytes, ids: Sequence[bytes], manifest: Manifest
    ) -> None:
        row = {"dataset_id": dataset_id, "task_id": task_id, "size": len(ids)}
        with self._ledger.engine.begin() as connection:
            connection.execute(insert(DATASETS).values(row))
            add_manifest(connection, dataset_id, manifest)

    def dataset(self, _: bytes) -> None:
        return None


def peak_mb() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class Large:
    """A helper that takes so many drawn shares for a dataset, which has no room in its memory."""

    def __init__(
        self, folder: Path, records: int, segments: str | None = None, features: int = FEATURES
    ) -> None:
        scene = Scene(folder)
        scene.restart(segments=open_bucket(segments) if segments is not None else None)
        self.records, self.chunk = records, min(CHUNK, MAX_CHUNK_BYTES // (2 * features))
        self.core = scene.cores[0]
        self.task = make_task(scene.parties, num_features=features, max_dataset_size=records)
        self.core.tasks._floors = replace(FLOORS, max_dataset_size=records, max_dataset_bytes=1 << 50)
        self.core.tasks.register(canonical.encode(self.task), None)
        ledger = NoLedger(self.core.datasets.ledger)
        for name, stub in (
            ("open_shares", Drawn(features).open),
            ("ledger", ledger),
            ("kept", FairCache(0)),
        ):
            object.__setattr__(self.core.datasets, name, stub)

    def prepare(self, finished: Callable[[Callable[[], Any]], Any], told: Callable[[int], None]) -> bytes:
        """Prepare all shares: the dataset's id.

        Args:
            finished: Calls what ends the preparation, for its result.
            told: Hears after each chunk how many were taken.
        """
        with self.core.datasets.prepare(self.task.task_id, b"h" * 16, None) as preparation:
            for start in range(0, self.records, self.chunk):
                count = min(self.chunk, self.records - start)
                preparation.add(only_counted(count))
                told(start + count)
            totals: PreparedTotals = finished(preparation.finish)
        return totals.admitted_digest

    def commit(self, dataset: bytes) -> None:
        """Make all that was prepared a dataset."""
        bits = np.packbits(np.ones(self.records, np.bool_), bitorder="little").tobytes()
        self.core.datasets.commit(self.task.task_id, b"h" * 16, bits, dataset, None)


def measure(records: int, rounds: int, segments: str | None, features: int) -> dict[str, Any]:
    """Prepare, commit and sum so many records."""
    with tempfile.TemporaryDirectory() as folder, shown("shares", records) as tell:
        large = Large(Path(folder), records, segments, features)
        datasets = large.core.datasets
        told: dict[str, Any] = {"records": records, "base_mb": peak_mb()}

        def timed(what: str, work: Callable[[], Any]) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            result = work()
            told[f"{what}_s"] = round(time.perf_counter() - wall, 2)
            told[f"{what}_cpu_s"] = round(time.process_time() - cpu, 2)
            told[f"{what}_peak_mb"] = peak_mb()
            return result

        dataset = timed(
            "prepare",
            lambda: large.prepare(lambda finish: timed("finish", finish), lambda count: tell(count, "")),
        )
        timed("commit", lambda: large.commit(dataset))
        told["sealed_mb"] = datasets.vault.num_bytes(dataset) >> 20
        timed("labels", lambda: datasets.labels(dataset))  # as each query reads them
        model = parse(dense_network([features, 1], "relu", seed=1), num_features=features)
        engine = ExactEngine(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, large.task.clip, threads=2)
        tensors = tuple(weights.quantise(values) for values in model.initial_values)
        everyone = Evaluated(is_evaluated=np.ones(records, np.bool_), counts=np.ones(records, np.bool_))
        sums = {
            timed(
                "round", lambda: sum_batches(engine, tensors, datasets.pieces(dataset), everyone, never)
            ).values_digest
            for _ in range(rounds)
        }
        told["digests"] = len(sums)
    return told


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("A large dataset at one helper.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--segments", help="a URL of object storage; by default a file")
    arguments = parser.parse_args()
    told = measure(arguments.records, arguments.rounds, arguments.segments, arguments.features)
    show(told, is_json=arguments.json)


if __name__ == "__main__":
    main()

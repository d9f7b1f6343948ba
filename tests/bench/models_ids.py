"""Wide ids: what a record costs beside large tables, and what an advertiser's model gains by them.

python -m tests.bench.models_ids           prints JSON; a part of `make bench-models`
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import onnx
from sklearn.metrics import roc_auc_score

from adserver.training.defaults import Network
from adserver.training.inference import predict
from docs.tutorial.fleet import HELPERS, Fleet
from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from maskedlark.encoding.encoder import Encoder, IdColumn
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import quantise
from maskedlark.privacy.clip import Clip, Norm
from tests.bench.examples import frappe
from tests.bench.job import LIMITS
from tests.bench.quickstart_job import train_as_quickstart
from tests.bench.wide_job import peak_mb
from tests.fleet_commands import create_task, seal, send_reports, submit
from tests.onnx_builders import encoded, node, tensor, weights

DELTA: Final = 1e-5
CLIP: Final = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)
_FEW: Final = 4_096
_MANY: Final = 16_384


def bytes_of_rows(rows: int) -> int:
    """How many features spell the number of a row."""
    return max(1, -(-(rows - 1).bit_length() // 8))


def wide_network(*, tables: int, rows: int, width: int, hidden: int) -> bytes:
    """A table for each column of ids, and a Relu network on the rows that they name.

    Features: the bytes of each column's id, the lowest first.
    """
    spelt = bytes_of_rows(rows)
    powers = np.kron(np.eye(tables), 256.0 ** np.arange(1, spelt + 1)[:, None])
    nodes: list[onnx.NodeProto] = [
        node("Constant", [], ["powers"], value=tensor("", powers)),
        node("MatMul", ["x", "powers"], ["numbers"]),
        node("Cast", ["numbers"], ["ids"], to=7),
    ]
    held: list[Any] = []
    for place in range(tables):
        held += [tensor(f"at{place}", place, np.int64), weights(f"table{place}", rows, width)]
        nodes += [
            node("Gather", ["ids", f"at{place}"], [f"id{place}"], axis=1),
            node("Gather", [f"table{place}", f"id{place}"], [f"rows{place}"]),
        ]
    nodes += [
        node("Concat", [f"rows{place}" for place in range(tables)], ["joined"], axis=1),
        node("Gemm", ["joined", "w", "b"], ["h"]),
        node("Relu", ["h"], ["a"]),
        node("Gemm", ["a", "v", "c"], ["y"]),
    ]
    held += [
        weights("w", tables * width, hidden),
        weights("b", hidden),
        weights("v", hidden, 1),
        weights("c", 1),
    ]
    return encoded(nodes, held, width=tables * spelt)


def logistic_on_ids(encoder: Encoder) -> bytes:
    """A logistic regression: a number for each row of each column, all in one table that begins at zero."""
    starts = [0, *accumulate(column.rows for column in encoder.columns if isinstance(column, IdColumn))]
    powers = np.zeros((encoder.num_features, len(encoder.columns)))
    feature = 0
    for place, column in enumerate(encoder.columns):
        for byte in range(column.num_bytes):
            powers[feature, place] = 256.0 ** (byte + 1)
            feature += 1
    nodes = [
        node("Constant", [], ["powers"], value=tensor("", powers)),
        node("Constant", [], ["starts"], value=tensor("", starts[:-1], np.int64)),
        node("MatMul", ["x", "powers"], ["numbers"]),
        node("Cast", ["numbers"], ["ids"], to=7),
        node("Add", ["ids", "starts"], ["rows"]),
        node("Gather", ["table", "rows"], ["entries"]),
        node("ReduceSum", ["entries", "axes"], ["y"], keepdims=0),
    ]
    held = [tensor("table", np.zeros((starts[-1], 1))), tensor("axes", [1], np.int64)]
    return encoded(nodes, held, width=encoder.num_features)


def frappe_auc(
    *, seed: int, words: int | None = None, epsilon: float = 3.0, learning_rate: float | None = None
) -> tuple[float, float]:
    """The AUC on Frappe's test file after training on four fifths of the other, and the learning rate.

    Every field is a column of ids; with no number of words, the vocabularies are planned; with no rate, it is
    the rule's.
    """
    seen, test = frappe("validation"), frappe("test")
    order = np.random.default_rng(seed).permutation(len(seen.labels))
    reported = seen.part(order[len(order) // 5 :])
    training = PlannedTraining(reports=len(reported.labels), epsilon=epsilon)
    encoder = fit(reported.cells, FitSettings(words=dict.fromkeys(reported.cells, words), training=training))
    trained = train_as_quickstart(
        logistic_on_ids(encoder),
        encoder.features(reported.cells),
        reported.labels,
        network=Network(hidden=(), are_numbers_in_tables=False),
        epsilon=epsilon,
        seed=seed,
        learning_rate=learning_rate,
    )
    logits = predict(trained.onnx, encoder.features(test.cells))[:, 0]
    return float(roc_auc_score(test.labels, logits)), trained.learning_rate


def us_per_record(rows: tuple[int, ...] = (256, 100_000), *, tables: int = 10, turns: int = 7) -> list[float]:
    """Processor microseconds of one record more, for each number of rows: best times, taken in turns.

    What a round takes for its parameters alone, whatever its records, is in neither.
    """
    runs = [_runs_of(tables, count) for count in rows]
    best = [[np.inf, np.inf] for _ in rows]
    for _ in range(turns):
        for place, pair in enumerate(runs):
            for size, run in enumerate(pair):
                started = time.process_time()
                run()
                best[place][size] = min(best[place][size], time.process_time() - started)
    return [1e6 * (large - small) / (_MANY - _FEW) for small, large in best]


def _runs_of(tables: int, rows: int) -> list[Callable[[], object]]:
    """A round of few and one of many records, whose ids are of any row alike."""
    spelt, rng = bytes_of_rows(rows), np.random.default_rng(1)
    model = parse(wide_network(tables=tables, rows=rows, width=8, hidden=32), num_features=tables * spelt)
    engine = ExactEngine(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, CLIP)
    tensors = tuple(quantise(value) for value in model.initial_values)

    def run_of(records: int) -> Callable[[], object]:
        ids = rng.integers(0, rows, (records, tables, 1))
        features = (ids >> 8 * np.arange(spelt) & 255).astype(np.uint8).reshape(records, -1)
        labels = np.broadcast_to(np.arange(2, dtype=np.uint32), (records, 2)).copy()
        shares = rng.integers(0, 1 << 63, (records, 2)).astype(np.uint64)
        batch = Batch(features=features, labels=labels, mask_shares=shares)
        return lambda: engine.masked_sum(tensors, batch)

    return [run_of(_FEW), run_of(_MANY)]


def ids_figures(seeds: int = 2) -> dict[str, float]:
    """The keys of this module for `make bench-models`."""
    few, many = us_per_record()
    planned = [frappe_auc(seed=seed)[0] for seed in range(1, seeds + 1)]
    return {
        "us_per_record_10_tables_256_rows": few,
        "us_per_record_10_tables_100000_rows": many,
        "us_per_record_wide_over_narrow": many / few,
        "peak_mb": peak_mb_of_helpers(),
        "frappe_wide_auc": float(np.mean(planned)),
        "frappe_wide_auc_spread": float(np.std(planned, ddof=1)) if seeds > 1 else 0.0,
    }


def peak_mb_of_helpers() -> float:
    """The most resident memory of a helper in a job of ten million weights, through real processes.

    Ten tables of 100,000 rows of 10, 256 reports, two rounds with noise.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        limits = f"{LIMITS} --max-parameters {MOST_PARAMETERS}".split()
        with Fleet(folder=folder, helper_options=tuple(limits)) as fleet:
            task = create_task(
                fleet,
                "wide",
                "--classes 2 --num-features 30 --min-batch-size 100 --mechanism gaussian --epsilon 3"
                f" --collusion-epsilon 1000000 --delta {DELTA} --clip-norm 1",
            )
            source = "--source synthetic --synthetic-features 30 --synthetic-rows 256 --seed 1"
            send_reports(fleet, task, source)
            dataset = seal(fleet, task)["dataset_id"]
            model = folder / "model.onnx"
            model.write_bytes(wide_network(tables=10, rows=100_000, width=10, hidden=32))
            job = submit(
                fleet,
                f"--model {model} --loss binary_cross_entropy_with_logits --rounds 2 --learning-rate 0.3"
                f" --clip-norm 1 --epsilon 3 --dataset {dataset}",
            )["job_id"]
            fleet.adserver("job", "watch", job, options=False)
            return max(peak_mb(fleet.pid(one)) for one in HELPERS)


def vocabularies() -> dict[str, float]:
    """The AUC of one seed by epsilon and words a column; docs/how-to/own-data.md shows it."""
    return {
        f"epsilon {epsilon:g}, {words or 'planned'}": frappe_auc(seed=1, words=words, epsilon=epsilon)[0]
        for epsilon in (3.0, 1.0)
        for words in (254, 1_000, 4_082, None)
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--vocabularies", action="store_true", help="the AUC by words a column and epsilon")
    asked = parser.parse_args()
    print(json.dumps(vocabularies() if asked.vocabularies else ids_figures(asked.seeds)))


if __name__ == "__main__":
    main()

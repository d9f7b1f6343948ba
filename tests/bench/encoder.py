"""Encoders and exported pipelines on a table: `make bench-encoder ARGS=--json`.

    rows_differing          rows of two halves, encoded apart, that get other bytes than in the whole table
    rows_differing_by_file  the same when each half fits an encoder of its own, as every file did before
    predictions_differing   raw rows for which the exported graph, in plain onnxruntime, decides otherwise
                            than the trained model does on the encoder's bytes

The table is UCI Adult (`browser-sim download adult --to FOLDER`) where $MASKEDLARK_DATA/adult has it, else
the built-in sample, which is made up; `--csv` and `--label` name another. The model is a 32-unit network,
trained in the clear for one second: what it says of a row is what matters here.
"""

import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier

from adserver.training.as_onnx import as_onnx
from adserver.training.inference import predict
from adserver.training.pipeline import from_columns
from browser_sim.sources.table import TableSettings, fit_counting, load_table
from maskedlark.encoding.encoder import Encoder, NumberColumn
from tests.bench.harness import bench_parser, show

MOST = 10_000


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("Encoders and exported pipelines")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--label", default="income")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.csv or adult(Path(folder))
        told = measure(path, asked.label, Path(folder))
    show(told, is_json=asked.json)


def adult(folder: Path) -> Path:
    """The table of the data folder, or the built-in sample."""
    from browser_sim.samples import write_sample

    real = Path(os.environ.get("MASKEDLARK_DATA", "../shared/data")) / "adult" / "adult.csv"
    return real if real.is_file() else write_sample("adult", folder)


def measure(path: Path, label: str, folder: Path) -> dict[str, object]:
    """All three counts."""
    header, *rows = path.read_text().splitlines()
    middle = len(rows) // 2
    halves = []
    for name, part in (("first.csv", rows[:middle]), ("second.csv", rows[middle:])):
        (folder / name).write_text("\n".join([header, *part]) + "\n")
        halves.append(folder / name)
    encoder = fit_counting(TableSettings(path=path, label=label)).encoder
    whole = load_table(TableSettings(path=path, encoder=encoder)).records
    apart = np.concatenate([features(half, encoder, label) for half in halves])
    by_file = np.concatenate([features(half, None, label) for half in halves])
    network = MLPClassifier((32,), max_iter=8, random_state=0, early_stopping=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, and need not
        network.fit(whole.features[:MOST] / 256, whole.labels[:MOST])
    model = as_onnx(network, len(encoder.columns))
    feed = raw(path, encoder)
    session = onnxruntime.InferenceSession(from_columns(model, encoder))
    (from_raw,) = session.run(None, feed)
    trained = predict(model, whole.features[: len(from_raw)])
    return {
        "table": path.name,
        "rows": len(rows),
        "rows_differing": differing(apart, whole.features),
        "rows_differing_by_file": differing(by_file, whole.features),
        "raw_rows": len(from_raw),
        "predictions_differing": differing(decided(from_raw), decided(trained)),
        "largest_difference_of_an_output": float(np.abs(from_raw - trained).max()),
        "accuracy": float((decided(trained)[:, 0] == whole.labels[: len(trained)]).mean()),
    }


def features(path: Path, encoder: Encoder | None, label: str) -> NDArray[np.uint8]:
    return load_table(TableSettings(path=path, encoder=encoder, label=label)).records.features


def decided(outputs: NDArray[np.float32]) -> NDArray[np.int64]:
    """The class of each row, (rows, 1)."""
    chosen = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return np.asarray(chosen, np.int64)[:, None]


def differing(one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """How many rows are not the same."""
    return int((one != other).any(axis=1).sum())


def raw(path: Path, encoder: Encoder) -> dict[str, NDArray[np.generic]]:
    """The first rows as a user of the graph reads them from the file: with pandas, not with our reader."""
    import pandas as pd

    words = [column.name for column in encoder.columns if not isinstance(column, NumberColumn)]
    table = pd.read_csv(
        path,
        dtype=dict.fromkeys(words, str),
        na_values=["?"],
        skipinitialspace=True,
        nrows=MOST,
    )
    return {
        column.name: np.array(table[column.name].fillna(""), object)[:, None]
        if column.name in words
        else table[column.name].to_numpy(np.float64)[:, None]
        for column in encoder.columns
    }


if __name__ == "__main__":
    main()

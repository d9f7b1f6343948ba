"""What clip bounds do to predictions where labels are rarer, before and after calibration by the panel.

    python -m tests.bench.calibration [--only 10] [--seeds 5]

Quickstart's job on Adult, at epsilon 3 with the exact engine and both helpers' noise; where positives are one
in ten or in fifty, others are left out of reports, panel and test rows alike. One row for each share, way to
bound gradients and kind of figures: as trained, or after `model calibrate --panel`. Figures are of the test
file: means over seeds, with the standard deviation. Seeds begin at 201.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np

from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.exported_model import ExportedModel
from adserver.training.calibration import calibrate_by_panel
from adserver.training.defaults import CLIP_OF_RARE, Network
from adserver.training.inference import evaluate
from tests.bench.examples import Examples, adult, rare, split
from tests.bench.harness import bench_parser, show
from tests.bench.quickstart_job import train_by_defaults

_EPSILON: Final = 3.0
_FIRST_SEED: Final = 201
_TABLES: Final = Network(hidden=(), are_numbers_in_tables=True)
_FIXED: Final = Network(hidden=(), are_numbers_in_tables=True, clip_norm=CLIP_OF_RARE)
_RARE: Final = Network(hidden=(), are_numbers_in_tables=False, clip_norm=CLIP_OF_RARE)
"""Quickstart's for a label of less than 5 %: it begins at the base rate."""
_WAYS: Final[dict[str, tuple[Network, float]]] = {
    "quantile .9": (_TABLES, CLIP_QUANTILE),
    "quantile .95": (_TABLES, 0.95),
    "quantile .99": (_TABLES, 0.99),
    "bound 6": (_FIXED, 0.0),
    "bound 6, as for rare labels": (_RARE, 0.0),
}
_SHARES: Final = {
    "24": (None, ("quantile .9", "quantile .95")),
    "10": (0.1, tuple(_WAYS)),
    "2": (0.02, ("quantile .9", "quantile .99", "bound 6, as for rare labels")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One share of positives, way and kind of figures."""

    positives: str
    way: str
    is_calibrated: bool
    mean_over_rate: float
    mean_over_rate_spread: float
    log_loss: float
    log_loss_spread: float
    auc: float
    auc_spread: float
    seeds: int


def rows(only: str, seeds: int) -> Iterator[Row]:
    """Measure all shares of positives, or only one of them."""
    encoder, seen, test = adult()
    for positives, (share, ways) in _SHARES.items():
        if only not in ("", positives):
            continue
        for way in ways:
            network, quantile = _WAYS[way]
            found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
            for seed in range(_FIRST_SEED, _FIRST_SEED + seeds):
                kept, tested = (one if share is None else rare(one, seed, share) for one in (seen, test))
                parts = split(kept, seed)
                trained = train_by_defaults(
                    encoder, parts, epsilon=_EPSILON, seed=seed, network=network, clip_quantile=quantile
                )
                calibrated = calibrate_by_panel(
                    ExportedModel(encoded=trained.onnx, rounds_done=1), _as_npz(parts.panel), trained.loss
                ).exported.encoded
                for is_calibrated, onnx in ((False, trained.onnx), (True, calibrated)):
                    one = evaluate(onnx, tested.features, tested.labels, trained.loss)
                    found[is_calibrated].append((one.mean_over_rate or 0.0, one.loss, one.auc or 0.0))
            for is_calibrated, figures in found.items():
                yield _row(positives, way, figures, is_calibrated=is_calibrated)


def _row(positives: str, way: str, figures: list[tuple[float, float, float]], *, is_calibrated: bool) -> Row:
    table = np.array(figures)
    mean = table.mean(0).round(4).tolist()
    spread = (table.std(0, ddof=1) if len(table) > 1 else table[0] * 0).round(4).tolist()
    names = ("mean_over_rate", "log_loss", "auc")
    return Row(
        positives=positives,
        way=way,
        is_calibrated=is_calibrated,
        seeds=len(figures),
        **dict(zip(names, mean, strict=True)),
        **{f"{name}_spread": value for name, value in zip(names, spread, strict=True)},
    )


def _as_npz(panel: Examples) -> bytes:
    written = BytesIO()
    np.savez(written, features=panel.features, labels=panel.labels)
    return written.getvalue()


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="one share of positives, in percent")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    for row in rows(arguments.only, arguments.seeds):
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()

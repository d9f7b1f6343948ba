"""`make bench-updates`: how fast one core opens, expands and sums sealed updates, and what an upload takes.

The slower of the two roles counts: helper 0 expands seeds, helper 1 opens whole vectors. Then a round of
1,000 devices with 100,180 parameters through real processes, for their peak memory, and draw and discard's
store under 8 devices at once. `--json` for one JSON object; `--part` for one part.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from maskedlark.randomness import seeded
from maskedlark.reports.updates import UpdateForm, UpdateSum
from maskedlark.rpc.wire import encode_report
from tests.bench.harness import bench_parser, show
from tests.bench.instances import measure_instances
from tests.bench.update_round import measure_round, mnist_folder
from tests.update_builders import update_opener, update_reports, update_round, update_world

PARAMETERS: Final = 100_000
DEVICES: Final = 40
"""Sealed before the clock starts; they are opened and summed again and again, to `REPEATS` times as many."""
REPEATS: Final = 5
ROUND_DEVICES: Final = 1_000
WEIGHTS: Final = (387, 7_850)
"""Of draw and discard's models: that of the paper's spam figure, and MNIST's."""
TURNS: Final = 500


def opening() -> dict[str, Any]:
    """Opening, expanding and summing, by one core."""
    form = UpdateForm(num_parameters=PARAMETERS)
    of = update_world(updates=form)
    one = update_round(of.task)
    drawn = np.random.default_rng(1)
    vectors = [drawn.integers(-1_000, 1_000, PARAMETERS) for _ in range(DEVICES)]
    reports = update_reports(of, one, vectors, seeded(2, "bench"))
    seconds = []
    for role in (0, 1):
        opener = update_opener(of, role, one)
        total = UpdateSum(form=form, role=role, task_id=of.task.task_id)
        started = time.process_time()
        for _ in range(REPEATS):
            for report in reports:
                opened = opener.open(report.report_id, report.time_bucket, report.shares[role])
                total.add(report.report_id, opened.payload)
        total.total()
        seconds.append(time.process_time() - started)
    rates = [REPEATS * DEVICES * PARAMETERS / one_role for one_role in seconds]
    return {
        "update_parameters_per_s": min(rates),
        "by_role": rates,
        "bytes_per_parameter": len(encode_report(reports[0])) / PARAMETERS,
        "parameters": PARAMETERS,
        "updates": REPEATS * DEVICES,
    }


def whole_round() -> dict[str, Any]:
    """A round through real processes: the largest peak of any of them, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure_round(Path(folder), devices=ROUND_DEVICES, mnist_dir=mnist_folder())
    return {
        "peak_mb": max(found.by_process.values()),
        "peak_mb_by_process": found.by_process,
        "round_devices": found.devices,
        "round_parameters": found.parameters,
        "round_s": found.seconds,
    }


def instances() -> dict[str, Any]:
    """Draw and discard's store: the rate at the first size, and what was lost or torn at all of them."""
    with tempfile.TemporaryDirectory() as folder:
        rates = [measure_instances(Path(folder), weights, TURNS) for weights in WEIGHTS]
    return {
        "instances_per_s": rates[0].per_s,
        "instances_per_s_by_weights": {str(one.weights): one.per_s for one in rates},
        "instances_cpu_ms": {str(one.weights): one.cpu_ms for one in rates},
        "instances_lost": sum(one.lost for one in rates),
        "instances_torn": sum(one.torn for one in rates),
    }


PARTS: Final = {"opening": opening, "instances": instances, "round": whole_round}


def main() -> None:
    """Measure, and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only this part")
    arguments = parser.parse_args()
    told: dict[str, Any] = {}
    for name in arguments.part or PARTS:
        told |= PARTS[name]()
    show(told, is_json=arguments.json)


if __name__ == "__main__":
    main()

"""`make bench-updates`: how fast one core opens, expands and sums sealed updates, and what an upload takes.

The slower of the two roles counts: helper 0 expands seeds, helper 1 opens whole vectors. `--json` for one
JSON object.
"""

import argparse
import json
import resource
import sys
import time
from typing import Any, Final

import numpy as np

from maskedlark.randomness import seeded
from maskedlark.reports.updates import UpdateForm, UpdateSum
from maskedlark.rpc.wire import encode_report
from tests.update_builders import update_opener, update_reports, update_round, update_world

PARAMETERS: Final = 100_000
DEVICES: Final = 40
"""Sealed before the clock starts; they are opened and summed again and again, to `REPEATS` times as many."""
REPEATS: Final = 5
KIB: Final = 1024


def measured() -> dict[str, Any]:
    """The figures."""
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
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB,
    }


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    told = measured()
    if arguments.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

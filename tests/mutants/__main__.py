"""Change the code of the critical rooms in small ways, and say which changes no test notices.

    make mutants ARGS="--count 300 --seed 1 --json"
    make mutants ARGS="--rooms helper/ledger,helper/trust --count 50"
    make mutants ARGS="--at helper/ledger/chain.py:31"

The first run measures which lines each fast test runs; it takes about as long as the tests do, and its result
is kept in .mutants_cache.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.mutants.children import LIBRARIES, Nursery
from tests.mutants.equivalents import FILE, Equivalents, as_entry
from tests.mutants.line_map import LineMap
from tests.mutants.run import Hunt, Outcome, all_mutants, draw
from tests.progress import shown

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ".mutants_cache"
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "maskedlark/privacy": ("maskedlark/privacy",),
    "maskedlark/releases": ("maskedlark/releases",),
    "maskedlark/reports": ("maskedlark/reports",),
    "maskedlark/numbers": ("maskedlark/numbers",),
    "helper/ledger": ("helper/ledger",),
    "helper/releases": ("helper/releases",),
    "helper/datasets": ("helper/datasets",),
    "helper/trust": ("helper/trust",),
    "helper/gradient/exact": ("helper/gradient/exact",),
    "adserver/admin": ("adserver/admin/access.py", "adserver/admin/grants.py", "adserver/store/access.py"),
    "adserver/ingest": ("adserver/ingest",),
    "adserver/store": (
        "adserver/store/leases.py",
        "adserver/store/reports.py",
        "adserver/store/insert_reports.py",
    ),
    "adserver/training": ("adserver/training/runner.py", "adserver/training/worker.py"),
}
ALWAYS: Final = ("tests/test_no_secret_in_reprs.py",)
TESTS: Final = (
    *ALWAYS,
    "tests/maskedlark",
    "tests/helper",
    "tests/adserver",
    "tests/spec",
    "tests/fuzz",
    "tests/e2e",
)


def main() -> None:
    """Measure, hunt and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="how many mutants are drawn")
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed draws the same mutants of one tree"
    )
    parser.add_argument("--rooms", default=",".join(ROOMS), help="some of the rooms, divided by commas")
    parser.add_argument("--at", default="", help="every mutant of FILE or FILE:LINE instead of a sample")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants are tried at a time")
    parser.add_argument("--seconds", type=float, default=180.0, help="of tests that one mutant meets at most")
    parser.add_argument("--as-measured", action="store_true", help="measure no lines, whatever changed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="another tree; its rooms are files and folders"
    )
    parser.add_argument("--tests", default=",".join(TESTS), help="the folders of its tests")
    parser.add_argument("--equivalent", type=Path, default=FILE, help="its mutants that change nothing")
    asked = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child goes on
    root: Path = asked.root.resolve()
    os.chdir(root)
    is_ours = root == ROOT
    nursery = Nursery(jobs=asked.jobs, libraries=LIBRARIES if is_ours else ())
    rooms = [ROOMS.get(name, (name,)) for name in asked.rooms.split(",")]
    watched = [file for files in (ROOMS.values() if is_ours else rooms) for file in files]
    lines = LineMap(root, root / CACHE, watched, asked.tests.split(","), ALWAYS)
    if asked.at:
        file, _, line = asked.at.partition(":")
        mutants = [one for one in all_mutants(root, [file]) if not line or one.line == int(line)]
    else:
        mutants = draw(root, [lines.files_in(room) for room in rooms], count=asked.count, seed=asked.seed)
    with _progress("lines") as show:
        lines.measure(nursery, show, is_exact=not asked.as_measured)
    with _progress("mutants") as show:
        outcome = Hunt(
            root, lines, nursery, Equivalents(asked.equivalent), most_s=asked.seconds, show=show
        ).run(mutants)
    _print(outcome, asked.seed, time.monotonic() - began, as_json=asked.json)


def _print(outcome: Outcome, seed: int, seconds: float, *, as_json: bool) -> None:
    for verdict in outcome.survived:
        sys.stderr.write(f"\n# {verdict.mutant.path}:{verdict.mutant.line}, {verdict.tests} tests\n")
        sys.stderr.write(f"{as_entry(verdict.mutant)}\n")
    figures = outcome.figures() | {"seed": seed, "seconds": round(seconds)}
    if as_json:
        print(json.dumps(figures))
        return
    for name in ("mutants", "killed", "equivalent", "killed_share", "hung", "seconds"):
        print(f"{name}: {figures[name]}")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    with shown(what, 1.0) as show:
        yield lambda done, total, note: show(done / total, f"{done} of {total}; {note}")


if __name__ == "__main__":
    main()

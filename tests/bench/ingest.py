"""Reports sealed, opened and stored per second and core, beside the bare X25519 rate in the same run.

    make bench-ingest            a table
    make bench-ingest ARGS=--json

Opening is what a helper does with a share: HPKE, parsing, every check, and the view tag. The bare rate is one
X25519 exchange a share, the floor under any HPKE open. Each side is measured in turns, several times, and its
best is kept: machines are noisy.
Rates of one process are by its processor time; only the pool, and one process beside it, are by the clock.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from rich.console import Console
from rich.table import Table

from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from helper.executors.processes import OpeningPool
from maskedlark.randomness import seeded
from maskedlark.reports.sealing import SealingKey
from maskedlark.reports.upload import Report, ReportCheck, Sealer
from maskedlark.rpc.wire import decode_report, encode_report
from maskedlark.runtime.database import open_database
from tests.bench.processor import processor
from tests.builders import NOW, World, examples, shares_for, world

NUM_FEATURES = 30
BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Rates in reports a second (one share each for opening).

    `_all_cores` with the helper's pool of processes.
    """

    cores: int
    reports: int
    sealed_per_s: float
    x25519_per_s: float
    opened_per_s: float
    opened_per_s_all_cores: float
    stored_per_s: float
    open_ratio_vs_x25519: float
    seal_us: float
    hpke_seal_us: float
    processor: str
    open_scaling: float


def measure(count: int, turns: int) -> Result:
    """All rates of one run."""
    of = world(num_features=NUM_FEATURES)
    given = examples(of.task, count)
    sealer, randomness = Sealer(of.bundle, now=NOW), seeded(1)
    started = time.process_time()
    sealed = [sealer.report(example, unix_s=NOW, randomness=randomness) for example in given]
    seal_s = (time.process_time() - started) / count

    opener, incoming = of.opener(0), shares_for(sealed, 0)
    ours, theirs = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()

    def exchange() -> None:
        for _ in range(count):
            ours.exchange(theirs)

    key, plaintext = SealingKey(of.keys[0].opening.public()), bytes(of.task.share_length)

    def seal() -> None:
        for _ in range(count):
            key.seal(plaintext, b"info")

    with OpeningPool(worth_workers=0) as pool, tempfile.TemporaryDirectory() as folder:
        pool.open(opener, incoming)  # the workers start
        best = fastest(
            {
                "x25519": exchange,
                "seal": seal,
                "one": lambda: opener.open(incoming),
                "all by one": lambda: opener.open(incoming),
                "all": lambda: pool.open(opener, incoming),
            },
            turns,
        )
        stored_s = store_s(Path(folder), of, sealed)
    return Result(
        cores=os.cpu_count() or 1,
        reports=count,
        sealed_per_s=1 / seal_s,
        x25519_per_s=count / best["x25519"],
        opened_per_s=count / best["one"],
        opened_per_s_all_cores=count / best["all"],
        stored_per_s=count / stored_s,
        open_ratio_vs_x25519=best["x25519"] / best["one"],
        seal_us=1e6 * seal_s,
        hpke_seal_us=1e6 * best["seal"] / count,
        processor=processor(),
        open_scaling=best["all by one"] / best["all"],
    )


def fastest(sides: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The best time of each side, in seconds, the sides taking turns."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(turns):
        for name, run in sides.items():
            clock = time.perf_counter if name.startswith("all") else time.process_time
            started = clock()
            run()
            best[name] = min(best[name], clock() - started)
    return best


def store_s(folder: Path, of: World, sealed: list[Report]) -> float:
    """How long the ad server takes to parse, check and durably store the reports, a thousand to a
    transaction, in seconds.
    """
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(of.bundle, created_at=NOW)
    store = ReportStore(engine)
    uploads = [encode_report(report) for report in sealed]
    check = ReportCheck(of.task)
    started = time.process_time()
    for start in range(0, len(uploads), BATCH):
        batch = [decode_report(upload) for upload in uploads[start : start + BATCH]]
        for report in batch:
            check.check(report)
        store.add(batch)
    seconds = time.process_time() - started
    engine.dispose()
    return seconds


def table(result: Result) -> Table:
    """The result for people."""
    shown = Table(
        "what",
        "a second",
        title=(
            f"{result.reports} reports of {NUM_FEATURES} features, 2 candidate labels; {result.cores} cores"
        ),
    )
    rows = {
        "sealed by a browser (both shares), one core": result.sealed_per_s,
        "bare X25519 exchanges, one core": result.x25519_per_s,
        "opened, parsed and checked by a helper, one process": result.opened_per_s,
        "the same, the helper's pool on all cores": result.opened_per_s_all_cores,
        "parsed, checked and durably stored by the ad server": result.stored_per_s,
    }
    for what, rate in rows.items():
        shown.add_row(what, f"{rate:,.0f}")
    shown.add_row("opened / bare X25519", f"{result.open_ratio_vs_x25519:.2f}")
    shown.add_row("all cores / one process", f"{result.open_scaling:.2f}")
    return shown


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.reports, arguments.turns)
    if arguments.json:
        print(json.dumps(asdict(result)))  # the benchmark's output
    else:
        Console().print(table(result))


if __name__ == "__main__":
    main()

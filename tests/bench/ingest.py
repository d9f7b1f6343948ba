"""Reports sealed, opened and stored per second and core, beside the bare X25519 rate in the same run.

    make bench-ingest            a table
    make bench-ingest ARGS=--json

Opening is what a helper does with a share: HPKE, parsing, every check, and the view tag. The bare rate is one
X25519 exchange a share, the floor under any HPKE open. Each side is measured in turns, several times, and its
best is kept: machines are noisy.
Rates of one process are by its processor time; only the pool, and one process beside it, are by the clock.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from helper.executors.processes import OpeningPool
from maskedlark.randomness import seeded
from maskedlark.reports.sealing import SealingKey
from maskedlark.reports.upload import Report, ReportCheck, Sealer
from maskedlark.rpc.wire import decode_report, encode_report
from maskedlark.runtime.database import open_database
from tests.bench.harness import bench_parser, fastest, show
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
        open_one, open_all = partial(opener.open, incoming), partial(pool.open, opener, incoming)
        best = fastest({"x25519": exchange, "seal": seal, "one": open_one}, turns)
        best |= fastest({"all by one": open_one, "all": open_all}, turns, time.perf_counter)
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


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--reports", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    show(measure(arguments.reports, arguments.turns), is_json=arguments.json)


if __name__ == "__main__":
    main()

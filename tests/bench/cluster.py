"""A helper on raylets of this machine: equal bits, workers killed, workers refused, nothing to read in Ray.

`make cluster`, or with ARGS="--json". Under ten minutes on two idle cores, most of it the start of raylets.

Sums are of random records in segments of three sizes, by this machine alone and by workers on one and three
raylets. Then a helper in a process of its own computes rounds on three of them, first in peace, then while
workers and raylets are killed (`cluster_kills`). Then workers come and go, others are refused
(`cluster_joining`). At last every place where Ray keeps anything, and a bucket, are searched for what must be
nowhere; and again beside a build that puts it there (`cluster_leaks`).
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from docs.tutorial.fleet import HELPERS
from helper.datasets.records import DatasetRecords
from helper.executors.clustered import ClusterExecutor
from maskedlark.errors import HelperUnavailable
from maskedlark.interrupt import never
from maskedlark.numbers.field import add
from maskedlark.releases.round import Evaluated
from tests.bench.cluster_joining import refused_here, refused_machines
from tests.bench.cluster_kills import Rounds, Told, raylets_killed, workers_killed
from tests.bench.cluster_leaks import found_in, in_the_clear, kept
from tests.bench.cluster_records import (
    CANARIES,
    CANARY_BYTES,
    SIZES,
    Bench,
    opened_by_workers,
)
from tests.bench.cluster_updates import UpdateBench, updates_added
from tests.bench.clustered_helper import ClusteredHelper, Site, sealed_site
from tests.bench.drawn_records import differing
from tests.bench.harness import bench_parser, show
from tests.helper.executors.ray_machines import Machines, machines
from tests.progress import shown

if TYPE_CHECKING:  # it imports ray, before `ray_machines` could say how that authenticates
    from helper.executors.ray_fleet import RayFleet

RAYLETS = 3
REPORTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The bench's keys; the issue's bars stand behind those that have one."""

    sums_compared: int
    bytes_that_differ: int  # 0
    job_rounds: int  # of a helper in its own process, and all that follow
    job_rounds_unequal: int  # 0
    job_rounds_charged_otherwise: int  # 0
    job_round_s: float
    worker_kills_tried: int
    worker_kills: int  # of those, in a round under way: 20
    worker_kills_with_orders: int
    worker_kill_late_s: float  # 10
    raylet_kills_tried: int
    raylet_kills: int  # 10
    raylet_kills_with_orders: int
    raylet_kill_late_s: float  # 30
    refused_here_of_another_cluster: int  # of as many as asked: 100
    refused_here_other_numerics: int  # 100
    refused_raylets_of_another_cluster: int
    refused_raylets_other_numerics: int
    raylets_of_each_kind: int
    comings_and_goings_unequal: int  # 0
    cancel_s: float  # 1
    update_sums_compared: int
    update_bytes_that_differ: int  # 0
    update_kills: int  # of workers, while updates were added up
    update_kill_late_s: float  # 10
    update_cancel_s: float  # 1
    update_local_cpu_s: float  # of this machine's sum
    update_head_cpu_s: float  # of it left to the head
    update_workers_cpu_s: float
    leaks: int  # 0
    leaked: str  # which kinds: none
    searched_for: str
    control_leaks: int
    control_leaked: str  # which kinds: all
    control_missed: str  # none
    searched_mb: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    records: int
    rounds: int
    kills: int
    raylet_kills: int
    turns: int
    refused: int
    refused_raylets: int
    update_kills: int

    @property
    def work(self) -> float:
        """Of all, in seconds of an idle machine, roughly: what the bar shows the rest of."""
        return (
            75.0 + 8.0 * self.update_kills + .5 * 6 * self.rounds + 6.0 * self.kills + 9.0 * self.raylet_kills
            + .5 * self.turns + 10.0 * self.refused_raylets
        )  # fmt: skip


def cancelled(bench: Bench, cluster: ClusterExecutor, records: DatasetRecords) -> float:
    """How long after its caller left a round has ended, and its worker does the next order."""
    calls = 0

    def leaves() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise HelperUnavailable("the caller has gone")

    left = 0.0
    with suppress(HelperUnavailable):
        cluster.masked_sum(bench.gradient, records, bench.sampled(1), leaves)
        left = time.perf_counter()
    began = left or time.perf_counter()
    nobody = Evaluated(is_evaluated=np.zeros(bench.count, np.bool_), counts=np.zeros(bench.count, np.bool_))
    cluster.masked_sum(bench.gradient, records, nobody, never)
    return time.perf_counter() - began


def measured(sizes: Sizes, told: Told) -> Results:
    """Everything, one after the other."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, machines(Path(name)) as made:
        results, service = _equal(Bench(Path(name), sizes.records), made, sizes, told), Path(name) / "fleet"
        bucket, secrets = Path(name) / "bucket", {}
        stored = ((), ("--segments", bucket.as_uri()))
        with ClusteredHelper(folder=service, helper_options_of=stored) as fleet:
            told(20.0, "a helper in its own process: reports")
            rounds = sizes.rounds + 6 * (sizes.kills + sizes.raylet_kills) * 4
            with sealed_site(fleet, made, reports=REPORTS, rounds=rounds) as site:
                site.await_joined(RAYLETS)
                results |= _killed(site, sizes, told)
                secrets["bucket's features"] = [one[:CANARY_BYTES] for one in site.features[:CANARIES]]
                secrets["helper's keys"] = _keys((service / HELPERS[1] / "keys.json").read_text())
        while made.nodes:
            made.remove(made.nodes[0])
        bench = Bench(Path(name) / "second", sizes.records)
        dataset = bench.dataset(SIZES[0])
        with made.fleet(0) as workers:
            results |= _refused(made, workers, sizes, told)
            cluster = ClusterExecutor(workers, bench.local)
            with _turns(bench, cluster, dataset, made=made, results=results, sizes=sizes, told=told):
                made.await_workers(workers, 2)
                results["cancel_s"] = cancelled(bench, cluster, dataset)
                add(cluster.masked_sum(bench.gradient, dataset, bench.sampled(1), never).vector, bench.noise)
                updates = UpdateBench(Path(name) / "updates", workers)
                secrets |= _updates(updates, made, results, sizes, told)
                secrets |= opened_by_workers(workers, bench.local)
                secrets |= bench.secrets(dataset) | {"workers' key": _private_key(made.certificates)}
                results |= _searched(made, secrets, bucket, service / "helper-1.log", told)
    return Results(**results, seconds=time.monotonic() - began)  # type: ignore[arg-type] # of their keys' types


def _equal(bench: Bench, made: Machines, sizes: Sizes, told: Told) -> dict[str, object]:
    """Sums by one and three raylets, beside those of this machine; three raylets are left."""
    compared, differ = 0, 0
    datasets = [bench.dataset(size) for size in SIZES]
    for raylets in (1, RAYLETS):
        while len(made.nodes) < raylets:
            made.add()
        with made.fleet(raylets) as fleet:
            cluster = ClusterExecutor(fleet, bench.local)
            for dataset in datasets:
                for seed in range(sizes.rounds):
                    found = cluster.masked_sum(bench.gradient, dataset, bench.sampled(seed), never)
                    differ += differing(bench.sum_here(datasets[-1], seed), found)
                    compared += 1
                    told(0.5, f"{compared} sums, {differ} bytes differ")
    return {"sums_compared": compared, "bytes_that_differ": differ}


def _updates(
    bench: UpdateBench, made: Machines, results: dict[str, object], sizes: Sizes, told: Told
) -> dict[str, list[bytes]]:
    """Updates added up by two workers; what must be nowhere of them."""
    found = asdict(updates_added(bench, made, workers=2, kills=sizes.update_kills))
    results |= {f"update_{key}": value for key, value in found.items()}
    told(15.0 + 8.0 * sizes.update_kills, f"{bench.compared} sums of updates, {bench.differ} bytes differ")
    return bench.secrets


def _killed(site: Site, sizes: Sizes, told: Told) -> dict[str, object]:
    """A whole small job of a helper in its own process: in peace, then with kills."""
    rounds = Rounds(site=site)
    rounds.measure(sizes.rounds)
    workers = workers_killed(rounds, sizes.kills, lambda done, note: told(6.0 * done, note))
    raylets = raylets_killed(rounds, sizes.raylet_kills, lambda done, note: told(9.0 * done, note))
    return {
        "job_rounds": rounds.done,
        "job_rounds_unequal": rounds.unequal,
        "job_rounds_charged_otherwise": rounds.charged_otherwise,
        "job_round_s": rounds.usual_s,
        "worker_kills_tried": workers.tried,
        "worker_kills": workers.hit,
        "worker_kills_with_orders": workers.with_orders,
        "worker_kill_late_s": workers.late_s,
        "raylet_kills_tried": raylets.tried,
        "raylet_kills": raylets.hit,
        "raylet_kills_with_orders": raylets.with_orders,
        "raylet_kill_late_s": raylets.late_s,
    }


def _refused(made: Machines, fleet: "RayFleet", sizes: Sizes, told: Told) -> dict[str, object]:
    here = refused_here(made.folder / "refused", sizes.refused)
    there = refused_machines(made, fleet, sizes.refused_raylets)
    told(10.0 * sizes.refused_raylets, f"refused: {here}, of raylets {there}")
    return {
        "refused_here_of_another_cluster": here.of_another_cluster,
        "refused_here_other_numerics": here.other_numerics,
        "refused_raylets_of_another_cluster": there.of_another_cluster,
        "refused_raylets_other_numerics": there.other_numerics,
        "raylets_of_each_kind": sizes.refused_raylets,
    }


@contextmanager
def _turns(
    bench: Bench,
    cluster: ClusterExecutor,
    dataset: DatasetRecords,
    *,
    made: Machines,
    results: dict[str, object],
    sizes: Sizes,
    told: Told,
) -> Iterator[None]:
    """Workers 0 -> 1 -> 2, what the block does, and -> 1 -> 0, each with as many rounds."""
    unequal = 0

    def compare(workers: int) -> None:
        nonlocal unequal
        for seed in range(max(1, sizes.turns // 5)):
            found = cluster.masked_sum(bench.gradient, dataset, bench.sampled(seed), never)
            unequal += differing(bench.sum_here(dataset, seed), found) > 0
            told(0.5, f"{workers} raylets, {unequal} sums unequal")

    compare(0)
    for raylets in (1, 2):
        made.add()
        compare(raylets)
    yield
    while made.nodes:
        made.remove(made.nodes[0])
        compare(len(made.nodes))
    results["comings_and_goings_unequal"] = unequal


def _searched(
    made: Machines, secrets: Mapping[str, Sequence[bytes]], bucket: Path, log: Path, told: Told
) -> dict[str, object]:
    """What is found of secrets, and what is found beside a naive build."""
    found, total = found_in(kept(made, bucket, log), secrets)
    told(10.0, f"searched {total >> 20} MB, found {found.total()}")
    with in_the_clear(secrets, bucket):
        control, _ = found_in(kept(made, bucket, log), secrets)
    told(20.0, f"searched beside a naive build, found {control.total()}")
    return {
        "leaks": found.total(),
        "leaked": ", ".join(found),
        "searched_for": ", ".join(secrets),
        "control_leaks": control.total(),
        "control_leaked": ", ".join(sorted(control)),
        "control_missed": ", ".join(sorted(secrets.keys() - control.keys())),
        "searched_mb": total >> 20,
    }


def _private_key(certificates: Path) -> list[bytes]:
    """The private key of a machine's workers: a line of its file, and the number that it is."""
    file = (certificates / "tls.key").read_bytes()
    key = load_pem_private_key(file, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return [file.splitlines()[2], key.private_numbers().private_value.to_bytes(32)]


def _keys(file: str) -> list[bytes]:
    """The long values of a helper's key file: as they are written there, and as the bytes that they are."""

    def values(of: object) -> Iterator[str]:
        for one in of.values() if isinstance(of, dict) else of if isinstance(of, list) else ():
            yield from [one] if isinstance(one, str) else values(one)

    written = [one for one in values(json.loads(file)) if len(one) >= 2 * CANARY_BYTES]
    return [one.encode() for one in written] + [bytes.fromhex(one) for one in written if _is_hex(one)]


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and set(text) <= set("0123456789abcdef")


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("A helper's rounds on a Ray cluster.")
    parser.add_argument("--records", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=20, help="of each segment size and number of raylets")
    parser.add_argument("--kills", type=int, default=20, help="of workers, in the midst of rounds")
    parser.add_argument("--raylet-kills", type=int, default=10)
    parser.add_argument("--update-kills", type=int, default=6, help="of workers, while updates are added up")
    parser.add_argument("--turns", type=int, default=30, help="rounds while workers come and go")
    parser.add_argument("--refused", type=int, default=100, help="workers of each kind, in this process")
    parser.add_argument("--refused-raylets", type=int, default=3, help="raylets of each kind")
    arguments = vars(parser.parse_args())
    is_json, sizes = arguments.pop("json"), Sizes(**arguments)
    done = 0.0
    # what Ray prints of raylets that were killed is no part of the results
    with redirect_stdout(sys.stderr), shown("cluster", sizes.work) as tell:

        def told(more: float, note: str) -> None:
            nonlocal done
            done += more
            tell(done, note)

        results = measured(sizes, told)
    show(results, is_json=is_json)


if __name__ == "__main__":
    main()

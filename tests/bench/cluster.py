"""A helper on raylets of this machine: equal bits, workers killed, workers refused, nothing to read in Ray.

`make cluster`, or with ARGS="--json". A few minutes on two cores.

Sums are of random records in segments of three sizes, by this machine alone and by workers on one and three
raylets. Then workers and raylets are killed in the midst of rounds. Then every place where Ray keeps anything
is searched for what must be nowhere: records' features, mask shares, weights, the keys of segments, those
that open reports, and the join token. The same search runs after a control build that hands Ray the same
records in the clear.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

import numpy as np
import psutil

from helper.datasets import segments
from helper.datasets.records import Records
from helper.datasets.segments import RowShape
from helper.datasets.vault import Vault
from helper.executors.clustered import ClusterExecutor
from helper.executors.dispatch import Fleet
from helper.executors.executor import Gradient, ModelFile
from helper.executors.local import LocalExecutor
from helper.gradient.exact.engine import ExactEngine
from maskedlark.errors import HelperUnavailable
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import random_vector
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import derive_key, system_randomness
from maskedlark.releases.round import Evaluated, MaskedSum
from tests.builders import examples, reports, shares_for, world
from tests.helper.executors.ray_machines import (
    Machines,
    await_workers,
    in_the_clear,
    machines,
    until,
)

FEATURES = 32
SIZES = (1 << 10, 1 << 14, 1 << 16)
CANARY_BYTES = 16
REPORTS = 2_000
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
CLIP = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The bench's keys; the issue's bars stand behind those that have one."""

    sums_compared: int
    bytes_that_differ: int  # 0
    worker_kills: int
    worker_kills_unequal: int  # 0
    worker_kill_late_s: float  # 10
    raylet_kills: int
    raylet_kills_unequal: int  # 0
    raylet_kill_late_s: float  # 30
    refused: int  # of 2 raylets, one without the token and one with another
    comings_and_goings_unequal: int  # 0
    cancel_s: float  # 1
    leaks: int  # 0
    control_leaks: int  # at least 1
    searched_mb: int
    round_s_local: float
    round_s_one_worker: float
    round_s_two_workers: float


class Bench:
    """A model, and random datasets in segments of some size."""

    def __init__(self, folder: Path, records: int) -> None:
        self.count, self.folder = records, folder
        self.storage_key = system_randomness(32)
        onnx = dense_network([FEATURES, 64, 1], "relu", seed=1)
        model = parse(onnx, num_features=FEATURES)
        self.gradient = Gradient(
            engine=ExactEngine(model, LOSS, CLIP, threads=1),
            weights=tuple(weights.quantise(values) for values in model.initial_values),
            file=ModelFile(read=lambda: onnx, num_features=FEATURES),
            loss=LOSS,
            clip=CLIP,
        )
        self.features = np.frombuffer(system_randomness(records * FEATURES), np.uint8).reshape(-1, FEATURES)
        self.masks = random_vector(2 * records, system_randomness).reshape(-1, 2)
        self.local = LocalExecutor(1)

    def key_for(self, context: bytes) -> bytes:
        return derive_key(self.storage_key, b"bench", context)

    def dataset(self, size: int) -> Records:
        """The same records, in segments of so many."""
        shape = RowShape(features=FEATURES, candidates=2, keys=0, columns=0)
        vault, dataset = (
            self._in_segments_of(size, Vault(self.folder / f"of-{size}", self.key_for)),
            bytes(32),
        )
        spool, rows = vault.begin(shape), shape.empty(self.count)
        rows.report_ids[:] = np.arange(self.count * 16, dtype=np.uint64).astype(np.uint8).reshape(-1, 16)
        rows.shares.features[:], rows.shares.mask_shares[:] = self.features, self.masks
        rows.shares.labels[:] = [0, 1]
        vault.add(spool, rows)
        ranks = np.random.default_rng(0).permutation(self.count).astype(np.uint32)
        vault.commit(spool, dataset, ranks)
        return Records(
            count=self.count,
            pieces=lambda interrupt: self._in_segments_of(size, vault).pieces(dataset, interrupt),
            sealed=lambda interrupt: self._in_segments_of(size, vault).sealed(dataset, interrupt),
        )

    def _in_segments_of(self, size: int, vault: Vault) -> Vault:
        """Write and read as a helper whose segments are of this size; a dataset at a time."""
        segments.SEGMENT_RECORDS = size  # type: ignore[misc] # the one place that changes it
        return vault

    def sampled(self, seed: int) -> Evaluated:
        """About half of the records evaluated, and half of those counting."""
        draw = np.random.default_rng(seed)
        is_evaluated = draw.random(self.count) < 0.5
        return Evaluated(is_evaluated=is_evaluated, counts=is_evaluated & (draw.random(self.count) < 0.5))

    def sum_here(self, records: Records, seed: int) -> MaskedSum:
        return self.local.masked_sum(self.gradient, records, self.sampled(seed), never)

    def secrets(self, records: Records) -> list[bytes]:
        """What must be nowhere in Ray, as bytes that are long enough to occur nowhere by chance."""
        places = range(0, self.count, max(1, self.count // 16))
        found = [self.features[place].tobytes()[:CANARY_BYTES] for place in places]
        found += [self.masks[place].tobytes() for place in places]
        found += [one.key for one in (records.sealed(never) or ())[:1]]
        found += [weights.encode(self.gradient.weights)[200:232], self.gradient.file.read()[-200:-168]]
        return found


def differing(first: MaskedSum, second: MaskedSum) -> int:
    """How many bytes of two sums and their digests differ."""
    parts = zip(
        first.vector.tobytes() + first.values_digest,
        second.vector.tobytes() + second.values_digest,
        strict=True,
    )
    return sum(one != other for one, other in parts)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def killed_in_rounds(
    bench: Bench,
    cluster: ClusterExecutor,
    records: Records,
    *,
    moments: Sequence[float],
    kill: Callable[[], None],
    mend: Callable[[], None] = lambda: None,
) -> tuple[int, float]:
    """Kill something at some moments of rounds: how many sums were not equal, and the longest delay."""
    unequal, late = 0, 0.0
    usual = timed(lambda: cluster.masked_sum(bench.gradient, records, bench.sampled(0), never))
    for seed, moment in enumerate(moments):
        expected, over = bench.sum_here(records, seed), Event()

        def strike(moment: float = moment, over: Event = over) -> None:
            over.wait(moment * usual)
            kill()

        striker = Thread(target=strike)
        striker.start()
        began = time.perf_counter()
        found = cluster.masked_sum(bench.gradient, records, bench.sampled(seed), never)
        late = max(late, time.perf_counter() - began - usual)
        striker.join()
        mend()
        unequal += differing(expected, found) > 0
    return unequal, late


def cancelled(bench: Bench, cluster: ClusterExecutor, records: Records) -> float:
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


def opened_by_workers(fleet: Fleet, local: LocalExecutor) -> list[bytes]:
    """Let workers open reports; what must be nowhere in Ray of it: the keys, and what they found."""
    of = world(num_features=FEATURES)
    opener, given = of.opener(0), shares_for(reports(of, examples(of.task, REPORTS)), 0)
    prepared = ClusterExecutor(fleet, local, opens_shares=True).open(opener, given)
    if not prepared.admitted.is_admitted.all():
        raise AssertionError("workers open honest reports")
    secrets = [key.secret_bytes() for key in opener.opening_keys] + [opener.view_key.secret_bytes()]
    for place in range(0, REPORTS, REPORTS // 16):
        secrets += [prepared.shares.features[place].tobytes()[:CANARY_BYTES]]
        secrets += [prepared.shares.mask_shares[place].tobytes()]
    return secrets


def searched(places: Iterator[bytes], secrets: Sequence[bytes]) -> tuple[set[bytes], int]:
    """Which secrets are found, and in how many bytes they were looked for."""
    found: set[bytes] = set()
    total = 0
    wanted = {one[:8]: one for one in secrets}
    for content in places:
        total += len(content)
        for start, secret in wanted.items():
            if start in content and secret in content:
                found.add(secret)
    return found, total


def kept_by_ray(machines_: Machines) -> Iterator[bytes]:
    """All that Ray keeps: files, shared memory, deleted files that are open, its own processes' memory."""
    for path in machines_.session.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):
                yield path.read_bytes()
    for path in Path("/dev/shm").iterdir():  # noqa: S108 # where Ray keeps objects
        if path.is_file() and not path.name.startswith("PostgreSQL"):
            with suppress(OSError):
                yield path.read_bytes()
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in ("raylet", "gcs_server"):
            yield from _open_files(process.pid)
            yield from _memory(process.pid)


def _open_files(pid: int) -> Iterator[bytes]:
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "deleted" in str(link.readlink()):
                    yield link.read_bytes()


def _memory(pid: int) -> Iterator[bytes]:
    """What a process can write to, as it is now."""
    with suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(one, 16) for one in span.split("-"))
            if rights.startswith("rw") and end - start <= 1 << 28:
                with suppress(OSError, ValueError, OverflowError):
                    memory.seek(start)
                    yield memory.read(end - start)


def measured(records: int, rounds: int, kills: int, raylet_kills: int) -> Results:
    """Everything, one after the other."""
    told: dict[str, float] = {"sums_compared": 0, "bytes_that_differ": 0}
    with tempfile.TemporaryDirectory() as name, machines(Path(name)) as made:
        bench = Bench(Path(name), records)
        datasets = [bench.dataset(size) for size in SIZES]
        middle = datasets[0]
        made.add()
        for raylets in (1, 3):
            while len(made.nodes) < raylets:
                made.add()
            with made.fleet(raylets) as fleet:
                cluster = ClusterExecutor(fleet, bench.local)
                for dataset in datasets:
                    for seed in range(rounds):
                        found = cluster.masked_sum(bench.gradient, dataset, bench.sampled(seed), never)
                        told["bytes_that_differ"] += differing(bench.sum_here(datasets[-1], seed), found)
                        told["sums_compared"] += 1
        with made.fleet(3) as fleet:
            cluster = ClusterExecutor(fleet, bench.local)
            unequal, late = killed_in_rounds(
                bench,
                cluster,
                middle,
                moments=np.linspace(0, 1.2, kills).tolist(),
                kill=lambda: _kill_one(made),
            )
            told |= {"worker_kills": kills, "worker_kills_unequal": unequal, "worker_kill_late_s": late}
            unequal, late = killed_in_rounds(
                bench,
                cluster,
                middle,
                moments=np.linspace(0.1, 0.9, raylet_kills).tolist(),
                kill=lambda: made.remove(made.nodes[0]),
                mend=lambda: made.add() and None,
            )
            told["raylet_kills"], told["raylet_kills_unequal"] = raylet_kills, unequal
            told["raylet_kill_late_s"] = late
        print(told, file=sys.stderr)
        while made.nodes:
            made.remove(made.nodes[0])
        told |= _come_and_go(bench, made, datasets)
    return Results(**told)  # type: ignore[arg-type] # counts are whole numbers


def _come_and_go(bench: Bench, made: Machines, datasets: Sequence[Records]) -> dict[str, float]:
    """From no worker to two and back, refused ones beside them, and then the search."""
    told: dict[str, float] = {"comings_and_goings_unequal": 0}
    dataset = datasets[0]

    def compare() -> None:
        found = cluster.masked_sum(bench.gradient, dataset, bench.sampled(9), never)
        told["comings_and_goings_unequal"] += differing(bench.sum_here(dataset, 9), found) > 0

    def round_s() -> float:
        def one() -> None:
            cluster.masked_sum(bench.gradient, dataset, bench.sampled(9), never)

        one()
        return min(timed(one) for _ in range(3))

    with made.fleet(0) as fleet:
        cluster = ClusterExecutor(fleet, bench.local)
        compare()
        told["round_s_local"] = round_s()
        for wrong in ("another", "missing"):
            path = made.folder / wrong
            if wrong == "another":
                path.write_text("x" * 64)
                path.chmod(0o600)
            made.add(token_file=path)
        until(lambda: len(fleet.refused) == 2)
        told["refused"] = len(fleet.refused) if not fleet.workers() else 0
        while made.nodes:
            made.remove(made.nodes[0])
        for workers, key in ((1, "round_s_one_worker"), (2, "round_s_two_workers")):
            made.add()
            await_workers(fleet, workers)
            compare()
            told[key] = round_s()
        told["cancel_s"] = cancelled(bench, cluster, dataset)
        print(told, file=sys.stderr)
        opened = opened_by_workers(fleet, bench.local)
        secrets = [*bench.secrets(dataset), *opened, made.token_file.read_bytes()]
        found, total = searched(kept_by_ray(made), secrets)
        told |= {"leaks": len(found), "searched_mb": total >> 20}
        parts = [bench.features.tobytes(), bench.masks.tobytes(), weights.encode(bench.gradient.weights)]
        parts += opened
        with in_the_clear(parts):
            told["control_leaks"] = len(searched(kept_by_ray(made), secrets)[0])
        while made.nodes:
            made.remove(made.nodes[0])
            compare()
    return told


def _kill_one(made: Machines) -> None:
    """End one process that holds segments."""
    for pid in made.worker_pids()[:1]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="A helper's rounds on a Ray cluster.")
    parser.add_argument("--records", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=20, help="of each segment size and number of raylets")
    parser.add_argument("--kills", type=int, default=20, help="of workers, in the midst of rounds")
    parser.add_argument("--raylet-kills", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measured(arguments.records, arguments.rounds, arguments.kills, arguments.raylet_kills)
    if arguments.json:
        print(json.dumps(asdict(results)))
        return
    for key, value in asdict(results).items():
        print(f"{key:32} {value:,.2f}" if isinstance(value, float) else f"{key:32} {value:,}")


if __name__ == "__main__":
    main()

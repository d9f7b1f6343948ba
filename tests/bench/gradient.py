"""How fast the exact gradient engine is, beside what others do for the same clipped sums.

`make bench-gradient`, or with --json; `python -m tests.bench.gradient --rounds 60` for one round alone.

A helper's whole round counts, from the opened dataset's arrays to the aggregate share, with its noise and
without. Each comparison runs its sides in turn on the same data and takes each side's best time, because a
shared machine only ever adds time.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.bench.without_vnni import restart_without

Clock = Callable[[], float]
PROGRAM = ("-m", "tests.bench.gradient")
CLIP_NORM = 1.0
FRAC_BITS = 32
NOISE_SCALE = 1 << 32
PARAMETERS = 784 * 500 + 500 + 500 * 10 + 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The bench's keys: ratios are another's time over ours, above 1 where we are faster."""

    threads: int
    exact_records_per_s: float
    ratio_vs_plain: float
    ratio_vs_opacus_ghost: float
    ratio_vs_vmap: float
    ratio_vs_bookkeeping: float
    wbcd_records_per_s: float
    ten_label_slowdown: float
    cnn_ratio_vs_opacus_ghost: float
    noise_ns_per_value: float
    round_with_noise_ratio_vs_plain: float
    share_of_limit: float


AIMS = {
    "ratio_vs_plain": ("0.60", "0.70"),
    "ratio_vs_opacus_ghost": ("2.0", ""),
    "ratio_vs_vmap": ("20", "50"),
    "ratio_vs_bookkeeping": ("report", "0.6"),
    "wbcd_records_per_s": ("150000", ""),
    "ten_label_slowdown": ("3", "2"),
    "cnn_ratio_vs_opacus_ghost": ("1", "2"),
    "noise_ns_per_value": ("100", "40"),
    "round_with_noise_ratio_vs_plain": ("0.8 plain's", ""),
    "share_of_limit": ("0.7", ""),
}
"""What must be and what was aimed for, of a processor with VNNI."""
AIMS_WITHOUT_VNNI = {**AIMS, "ratio_vs_plain": ("0.28", "0.35"), "ratio_vs_opacus_ghost": ("1.1", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One model on one batch."""

    onnx: bytes
    features: NDArray[np.uint8]
    labels: NDArray[np.uint32]
    shares: NDArray[np.uint64]


def best_times(
    sides: Sequence[Callable[[], object]], runs: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Each side's best time in seconds, the sides taking turns after one warm-up each."""
    for side in sides:
        side()
    best = [float("inf")] * len(sides)
    for _ in range(runs):
        for index, side in enumerate(sides):
            start = clock()
            side()
            best[index] = min(best[index], clock() - start)
    return best


def images(records: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """MNIST from the shared data folder, or bytes as sparse as MNIST's where there is none."""
    from tests.bench.mnist import load_training_set

    features, labels = load_training_set()
    repeats = -(-records // len(features))
    return np.tile(features, (repeats, 1))[:records], np.tile(labels, repeats)[:records]


def workload(
    onnx: bytes, features: NDArray[np.uint8], labels: NDArray[np.int64], *, classes: int, candidates: int
) -> Workload:
    """Each record's real label and candidates - 1 decoys, with uniform mask shares."""
    from maskedlark.numbers.field import random_vector
    from maskedlark.randomness import seeded

    rng = np.random.default_rng(0)
    records = len(features)
    decoys = np.argsort(rng.random((records, classes - 1)), axis=1)[:, : candidates - 1] + 1
    chosen = np.concatenate([labels[:, None], (labels[:, None] + decoys) % classes], axis=1)
    shares = random_vector(records * candidates, seeded(0)).reshape(records, candidates)
    return Workload(
        onnx=onnx, features=features, labels=rng.permuted(chosen, axis=1).astype(np.uint32), shares=shares
    )


def round_of(
    work: Workload, loss_name: str, threads: int, *, portable: bool = False
) -> Callable[[], tuple[bytes, bytes]]:
    """One helper's round: weights as they arrive, to the aggregate share's bytes and the digest."""
    from helper.gradient.engine import Batch
    from helper.gradient.exact.engine import ExactEngine
    from helper.gradient.exact.products.fastest import FastestBackend
    from helper.gradient.exact.products.float64 import Float64Backend
    from maskedlark.model.losses import Loss
    from maskedlark.model.onnx_file import parse
    from maskedlark.model.weights import decode, encode, quantise
    from maskedlark.numbers.field import to_bytes
    from maskedlark.privacy.clip import Clip, Norm

    model = parse(work.onnx, num_features=work.features.shape[1])
    clip = Clip(norm=Norm.L2, bound=CLIP_NORM, frac_bits=FRAC_BITS)
    engine = ExactEngine(
        model,
        Loss(loss_name),
        clip,
        threads=threads,
        backend=Float64Backend() if portable else FastestBackend(),
    )
    sent = encode([quantise(value) for value in model.initial_values])
    batch = Batch(features=work.features, labels=work.labels, mask_shares=work.shares)

    def run() -> tuple[bytes, bytes]:
        result = engine.masked_sum(decode(sent, model.parameters), batch)
        return to_bytes(result.vector), result.values_digest

    return run


def measure(threads: int, clock: Clock, *, portable: bool = False) -> Results:
    """Everything that compares speed, with as many threads on both sides."""
    import torch

    from helper.gradient.exact.products.fastest import BackendChoice, measure
    from maskedlark.privacy.samplers import discrete_gaussian
    from maskedlark.randomness import seeded
    from tests.bench import peers
    from tests.bench.limits import arithmetic_s

    torch.set_num_threads(threads)
    features, labels = images(2000)
    net = peers.dense((784, 500, 10))
    onnx = peers.export(net, 784)
    two = workload(onnx, features, labels, classes=10, candidates=2)
    ten = workload(onnx, features, labels, classes=10, candidates=10)
    exact = round_of(two, "cross_entropy", threads, portable=portable)
    times = best_times(
        [
            exact,
            peers.plain(net, two.features, two.labels),
            peers.opacus_ghost(net, two.features, two.labels, CLIP_NORM),
            peers.bookkeeping(net, two.features, two.labels, CLIP_NORM),
            round_of(ten, "cross_entropy", threads, portable=portable),
            lambda: discrete_gaussian(NOISE_SCALE, PARAMETERS, seeded(0)),
        ],
        runs=10,
        clock=clock,
    )
    part = 256
    (vmap,) = best_times(
        [peers.vmap_chunks(net, two.features[:part], two.labels[:part], CLIP_NORM)], 2, clock
    )
    wbcd_net = peers.dense((30, 50, 50, 1))
    wbcd_features, wbcd_labels = peers.wbcd(500)
    wbcd = workload(peers.export(wbcd_net, 30), wbcd_features, wbcd_labels, classes=2, candidates=2)
    tiny = round_of(wbcd, "binary_cross_entropy_with_logits", threads, portable=portable)
    (wbcd_time,) = best_times([tiny], 100, clock)
    cnn = peers.convolutional()
    seen = workload(peers.export(cnn, 784), features[:512], labels[:512], classes=10, candidates=2)
    ghost = peers.opacus_ghost(cnn, seen.features, seen.labels, CLIP_NORM)
    convolved = round_of(seen, "cross_entropy", threads, portable=portable)
    cnn_times = best_times([convolved, ghost], 4, clock)
    choice = (
        BackendChoice(**{kind.name: "float64" for kind in fields(BackendChoice)}) if portable else measure()
    )
    limit_s = arithmetic_s(choice, records=2000, labels=2, inputs=784, hidden=500, outputs=10)
    return Results(
        threads=threads,
        exact_records_per_s=len(features) / times[0],
        ratio_vs_plain=times[1] / times[0],
        ratio_vs_opacus_ghost=times[2] / times[0],
        ratio_vs_vmap=vmap * len(features) / part / times[0],
        ratio_vs_bookkeeping=times[3] / times[0],
        wbcd_records_per_s=len(wbcd_features) / wbcd_time,
        ten_label_slowdown=times[4] / times[0],
        cnn_ratio_vs_opacus_ghost=cnn_times[1] / cnn_times[0],
        noise_ns_per_value=1e9 * times[5] / PARAMETERS,
        round_with_noise_ratio_vs_plain=times[1] / (times[0] + times[5]),
        share_of_limit=limit_s / threads / times[0],
    )


def rounds_alone(rounds: int, clock: Clock, *, portable: bool) -> dict[str, float]:
    """Rounds of 784-500-10, two labels, 2,000 records, one thread, without another side.

    What is compared is another run of this: of another commit, or with NUMBA_CPU_FEATURES of another kind.
    """
    from tests.bench import peers

    work = workload(peers.export(peers.dense((784, 500, 10)), 784), *images(2000), classes=10, candidates=2)
    run = round_of(work, "cross_entropy", 1, portable=portable)
    for _ in range(3):
        run()
    faults, times = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, list[float]()
    for _ in range(rounds):
        start = clock()
        run()
        times.append(clock() - start)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return {
        "round_ms": round(1000 * statistics.median(times), 2),
        "best_ms": round(1000 * min(times), 2),
        "page_faults": round(faults / rounds),
    }


def bit_equal(record_gradients: int) -> bool:
    """Helper 0 on one thread by int8 digits, helper 1 on two by float64 limbs and in another order.

    The digests of every round.
    """
    from tests.bench import peers

    features, labels = images(20_000)
    order = np.random.default_rng(1).permutation(len(features))
    for number in range(-(-record_gradients // (2 * len(features)))):
        onnx = peers.export(peers.dense((784, 64, 10), seed=number), 784)
        work = workload(onnx, features, labels, classes=10, candidates=2)
        shuffled = Workload(
            onnx=onnx, features=features[order], labels=work.labels[order], shares=work.shares[order]
        )
        first = round_of(work, "cross_entropy", 1)()
        second = round_of(shuffled, "cross_entropy", 2, portable=True)()
        if first != second:
            return False
    return True


def print_peak(onnx_path: str, records: int) -> None:
    """In a process of its own, without torch.

    Run one round and print the peak of resident memory in MB, without the batch.
    """
    features, labels = images(records)
    work = workload(Path(onnx_path).read_bytes(), features, labels, classes=10, candidates=2)
    round_of(work, "cross_entropy", 1)()
    given = sum(array.nbytes for array in (work.features, work.labels, work.shares))
    status = Path(
        "/proc/self/status"
    ).read_text()  # not getrusage, whose peak counts the process that started this one
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print((peak * 1024 - given) / 1e6)


def peak_mb(records: int) -> float:
    """The peak resident memory of a process that runs one 784-500-10 round, less the batch's own arrays."""
    import tempfile

    from tests.bench import peers

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        Path(file.name).write_bytes(peers.export(peers.dense((784, 500, 10)), 784))
        command = [sys.executable, *PROGRAM, "--peak", file.name, "--records", str(records)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_table(
    results: Sequence[Results], extra: dict[str, object], aims: Mapping[str, tuple[str, str]]
) -> None:
    """For people."""
    print(
        f"{'':28}" + "".join(f"{result.threads:>10} thr" for result in results) + f"{'must':>12}{'aim':>10}"
    )
    for name in [field.name for field in fields(Results)][1:]:
        must, aim = aims.get(name, ("", ""))
        print(
            f"{name:28}"
            + "".join(f"{getattr(result, name):>14,.2f}" for result in results)
            + f"{must:>12}{aim:>10}"
        )
    for name, value in extra.items():
        print(f"{name:28}{value:>14}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one thread, and a tenth of the bit_equal run")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="one thread, by processor time: for a machine that others are using",
    )
    parser.add_argument(
        "--without-vnni",
        action="store_true",
        help="this processor held to AVX2, on both sides, and float64 products: see without_vnni.py",
    )
    parser.add_argument("--rounds", type=int, help="only so many rounds of one model, on one thread")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=2000, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak, arguments.records)
        return
    if arguments.without_vnni:
        restart_without([*PROGRAM, *sys.argv[1:]])
    warnings.simplefilter("ignore")
    processors = len(os.sched_getaffinity(0))
    clock = time.process_time if arguments.busy else time.perf_counter
    if arguments.rounds:
        print(json.dumps(rounds_alone(arguments.rounds, clock, portable=arguments.without_vnni)))
        return
    results = [
        measure(threads, clock, portable=arguments.without_vnni)
        for threads in sorted({1} if arguments.quick or arguments.busy else {1, processors})
    ]
    from helper.gradient.exact.products.fastest import measure as measure_products
    from tests.bench.processor import processor

    extra: dict[str, object] = {
        "processor": processor(),
        "products": "all by float64, AVX2 alone" if arguments.without_vnni else str(measure_products()),
        "peak_mb": round(peak_mb(2000)),
        "peak_mb_20000_records": round(peak_mb(20_000)),
        "bit_equal": bit_equal(100_000 if arguments.quick else 1_000_000),
        "request_bytes": 2 * PARAMETERS + 4,
        "response_bytes": 8 * PARAMETERS,
    }
    if arguments.json:
        print(json.dumps({**asdict(results[0]), **extra, "all_threads": asdict(results[-1])}))
    else:
        print_table(results, extra, AIMS_WITHOUT_VNNI if arguments.without_vnni else AIMS)


if __name__ == "__main__":
    main()

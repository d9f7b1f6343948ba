"""What one round takes of a helper's memory, beside what the helper estimates: part of `make bench-memory`.

    python -m tests.bench.round_memory --shape "convolution to 512 channels"     # one, in this process

Each shape runs in a process of its own: a helper's core answers a small round first, so that loops are
compiled and libraries loaded, and then the kernel's high-water mark is set back and one round measured.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from maskedlark.model.dense import dense_network
from tests.bench.harness import peak_mib
from tests.onnx_builders import encoded, node, tensor, weights

WITHIN: Final = 1.5
"""How far estimate and truth may be from each other, in either direction."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model and how many records of it a round sums."""

    make: Callable[[], bytes]
    features: int
    records: int
    classes: int = 2
    decoys: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMemory:
    """The memory of one round.

    Attributes:
        path: The engine's.
        estimate_mib: By counts, before the round.
        peak_mib: How far resident memory rose in the round.
        kept_mib: How much of it was still resident after the round.
        ratio: Of the estimate to the peak.
    """

    path: str
    estimate_mib: float
    peak_mib: float
    kept_mib: float
    ratio: float


def convolutional(side: int, layers: Sequence[tuple[int, int]], pools: Sequence[str], outputs: int) -> bytes:
    """A network of (channels, kernel) convolutions, each with its Relu, then pools, then a dense layer."""
    nodes = [node("Reshape", ["x", "image"], ["c0"])]
    held = [tensor("image", [-1, 1, side, side], np.int64), tensor("flat", [0, -1], np.int64)]
    channels, value = 1, "c0"
    for place, (wanted, kernel) in enumerate(layers):
        pad = kernel // 2
        nodes += [
            node("Conv", [value, f"w{place}", f"b{place}"], [f"s{place}"], pads=[pad] * 4),
            node("Relu", [f"s{place}"], [f"a{place}"]),
        ]
        held += [weights(f"w{place}", wanted, channels, kernel, kernel), weights(f"b{place}", wanted)]
        channels, value = wanted, f"a{place}"
    for place, pool in enumerate(pools):
        nodes.append(node(pool, [value], [f"p{place}"], kernel_shape=[2, 2], strides=[2, 2]))
        value, side = f"p{place}", side // 2
    nodes += [node("GlobalAveragePool", [value], ["mean"]), node("Reshape", ["mean", "flat"], ["vector"])]
    nodes.append(node("Gemm", ["vector", "last", "bias"], ["y"]))
    return encoded(
        nodes, [*held, weights("last", channels, outputs), weights("bias", outputs)], width=_width(held)
    )


def _width(held: Sequence[Any]) -> int:
    """The features of an image."""
    import onnx

    side = int(onnx.numpy_helper.to_array(held[0])[-1])
    return side * side


def embedding(places: int, width: int) -> bytes:
    """A table of 256 rows, and a dense layer on the rows of all places."""
    nodes = [
        node("Mul", ["x", "scale"], ["codes"]),
        node("Cast", ["codes"], ["indices"], to=7),
        node("Gather", ["table", "indices"], ["rows"]),
        node("Reshape", ["rows", "flat"], ["vector"]),
        node("Gemm", ["vector", "w", "b"], ["y"]),
    ]
    held = [
        tensor("scale", 256.0), tensor("flat", [0, -1], np.int64), weights("table", 256, width),
        weights("w", places * width, 1), weights("b", 1),
    ]  # fmt: skip
    return encoded(nodes, held, width=places)


def recurrent(steps: int, width: int, hidden: int) -> bytes:
    """An LSTM over a record's steps, and a dense layer on its last state."""
    nodes = [
        node("Reshape", ["x", "steps"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[1, 0, 2]),
        node("LSTM", ["t", "w", "r", "b"], ["", "last"], hidden_size=hidden),
        node("Reshape", ["last", "flat"], ["vector"]),
        node("Gemm", ["vector", "v", "c"], ["y"]),
    ]
    held = [
        tensor("steps", [-1, steps, width], np.int64), tensor("flat", [-1, hidden], np.int64),
        weights("w", 1, 4 * hidden, width), weights("r", 1, 4 * hidden, hidden), weights("b", 1, 8 * hidden),
        weights("v", hidden, 1), weights("c", 1),
    ]  # fmt: skip
    return encoded(nodes, held, width=steps * width)


def general(layers: Sequence[int]) -> bytes:
    """A dense network with Gelu, which has no exact form."""
    nodes, held, value = [], [], "x"
    for place in range(len(layers) - 1):
        nodes.append(node("Gemm", [value, f"w{place}", f"b{place}"], [f"s{place}"]))
        held += [weights(f"w{place}", *layers[place : place + 2]), weights(f"b{place}", layers[place + 1])]
        value = f"s{place}"
        if place < len(layers) - 2:
            nodes.append(node("Gelu", [value], [f"a{place}"]))
            value = f"a{place}"
    nodes.append(node("Identity", [value], ["y"]))
    return encoded(nodes, held, width=layers[0])


SHAPES: Final[Mapping[str, Shape]] = {
    "dense, small": Shape(
        make=lambda: dense_network([784, 100, 10], "relu", seed=1),
        features=784, records=4_000, classes=10, decoys=9,
    ),
    "dense, large": Shape(
        make=lambda: dense_network([784, 8_000, 10], "relu", seed=1), features=784, records=1_000, classes=10,
    ),
    "embedding, wide": Shape(make=lambda: embedding(30, 512), features=30, records=4_000),
    "convolution to 512 channels": Shape(
        make=lambda: convolutional(64, [(512, 1)], (), 1), features=4_096, records=20
    ),
    "convolutions, large images": Shape(
        make=lambda: convolutional(160, [(8, 3), (8, 3)], ("MaxPool",), 1), features=25_600, records=60
    ),
    "pooling": Shape(
        make=lambda: convolutional(128, [(16, 3)], ("AveragePool", "MaxPool", "AveragePool"), 4),
        features=16_384, records=60, classes=4, decoys=3,
    ),
    "dense, deep": Shape(
        make=lambda: dense_network([256] + [512] * 24 + [10], "tanh", seed=1),
        features=256, records=1_500, classes=10, decoys=4,
    ),
    "recurrent": Shape(make=lambda: recurrent(32, 16, 64), features=512, records=300),
    "general, ten candidates": Shape(
        make=lambda: general([256, 512, 10]), features=256, records=200, classes=10, decoys=9
    ),
    "general, large": Shape(make=lambda: general([784, 1_200, 1]), features=784, records=50),
}  # fmt: skip


def measure(name: str) -> RoundMemory:
    """Answer one round of a shape at a helper's core in this process; see `RoundMemory`."""
    with TemporaryDirectory() as folder:
        return _measured(SHAPES[name], Path(folder))


def _measured(shape: Shape, folder: Path) -> RoundMemory:
    from functools import partial

    from helper.gradient.choose import choose_engine
    from helper.ledger.records import ReleaseKey, key_of
    from helper.releases.round_cost import round_cost
    from maskedlark import canonical
    from maskedlark.model import weights as weights_format
    from maskedlark.model.losses import Loss
    from maskedlark.model.onnx_file import parse
    from maskedlark.releases.job import JobSpec
    from maskedlark.reports.report import Example
    from maskedlark.runtime.memory import give_back_memory
    from tests.helper.parties import ASKED, Scene

    labels = {"kind": "classes", "size": shape.classes, "default_label": 0}
    scene = Scene(
        folder, num_features=shape.features, labels=labels, num_decoys=shape.decoys, max_dataset_size=4_096
    )
    rng = np.random.default_rng(0)
    made = [
        Example(
            features=rng.integers(0, 256, shape.features).astype(np.uint8),
            label=float(rng.integers(shape.classes)),
        )
        for _ in range(shape.records)
    ]
    dataset = scene.seal(made)
    threads = os.cpu_count() or 1
    scene.restart(engine_for=partial(choose_engine, threads=threads))
    core = scene.cores[0]
    onnx = shape.make()
    model = parse(onnx, num_features=shape.features)
    loss = Loss.CROSS_ENTROPY if model.output_width > 1 else Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS

    def start(number: int, sampling: int) -> ReleaseKey:
        spec = JobSpec(
            job_id=bytes([number]) * 16, task_id=scene.task_id, dataset_id=dataset,
            model_digest=model.digest, loss=loss, rounds=1, sampling_numerator=sampling,
            noise_multiplier=0.0, is_sample_public=True,
        )  # fmt: skip
        core.jobs.start(canonical.encode(spec), onnx, ASKED)
        return key_of(spec)

    encoded_weights = weights_format.encode([weights_format.quantise(one) for one in model.initial_values])
    small, whole = start(1, 1 << 16), start(2, 1 << 32)
    core.jobs.at_work(small, None).answer(0, encoded_weights, ASKED)
    running = core.jobs.at_work(whole, None)
    gc.collect()
    give_back_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib(field="VmRSS")
    running.answer(0, encoded_weights, ASKED)
    peak = peak_mib() - before
    gc.collect()
    engine = running.running.computation.engine
    cost = round_cost(model, engine, records=shape.records, candidates=1 + shape.decoys)
    estimate = cost.num_bytes / _MIB
    return RoundMemory(
        path=engine.path,
        estimate_mib=round(estimate, 1),
        peak_mib=round(peak, 1),
        kept_mib=round(peak_mib(field="VmRSS") - before, 1),
        ratio=round(estimate / max(peak, 1e-9), 2),
    )


def measure_apart(name: str) -> RoundMemory:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.round_memory", "--shape", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return RoundMemory(**json.loads(done.stdout))


def main() -> None:
    """Measure one shape and print it as JSON, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES))
    name = parser.parse_args().shape
    if name is not None:
        print(json.dumps(asdict(measure(name))))  # the benchmark's output
        return
    for name in SHAPES:
        print(name, json.dumps(asdict(measure_apart(name))), flush=True)


if __name__ == "__main__":
    main()

"""Models and records for `test_exact_steps`: what records hold differs as much as it can, the work must not.

python -m tests.helper.gradient.exact.step_cases [CASE ...]             counts instructions; prints JSON
NUMBA_DISABLE_JIT=1 python -m tests.helper.gradient.exact.step_cases --lines [CASE ...]      counts lines
"""

import argparse
import importlib
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import helper.gradient.exact as package
from helper.datasets import proofs as residues
from helper.datasets.proofs import fast_residues
from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.kernels.clipping import clip_factors
from helper.gradient.exact.products import fastest
from helper.gradient.exact.products.fastest import BackendChoice
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.scoring import score
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.numbers.field import MODULUS, FieldVector
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.reports.measurement import Measurement, Value
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.shape import POINTS, proof_shape
from tests.helper.gradient.exact import old_loops
from tests.helper.gradient.exact.graphs import GraphBuilder, quantised
from tests.helper.gradient.exact.stepping import InstructionCounter

Counts: TypeAlias = dict[str, dict[str, int]]

RECORDS = 2
L2 = Clip(norm=Norm.L2, bound=0.8, frac_bits=32)
L1 = Clip(norm=Norm.L1, bound=3.0, frac_bits=28)
WIDE = Clip(norm=Norm.L2, bound=2.0**19, frac_bits=36)


PROOFS = "proofs"
TRACED = (str(Path(package.__file__).parent), residues.__file__, old_loops.__file__)
MEASURED = Measurement(
    min_cell_count=1, values=(Value(name="bucketed", low=-3, high=9, bucket_starts=(-3, 0, 5)),)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its loss and clip, and how many labels each record has."""

    model: Model
    loss: Loss
    clip: Clip
    labels: int = 2
    is_portable: bool = False


def _indices(graph: GraphBuilder, source: str) -> str:
    return graph.node("Cast", graph.node("Mul", source, graph.tensor(np.array(256, np.float32))), to=7)


def _shaped(graph: GraphBuilder, source: str, *shape: int) -> str:
    return graph.node("Reshape", source, graph.tensor(np.array([-1, *shape], np.int64)))


def gates() -> Case:
    """A hidden layer that features of zero keep alive and features of 255 kill."""
    graph = GraphBuilder(9, seed=1)
    weight = graph.tensor(-np.abs(graph.rng.normal(1, 0.2, (7, 9))).astype(np.float32))
    bias = graph.tensor(np.full(7, 0.5, np.float32))
    hidden = graph.node("Relu", graph.node("Gemm", "x", weight, bias, transB=1))
    return Case(model=graph.model(graph.gemm(hidden, 7, 3), 3), loss=Loss.CROSS_ENTROPY, clip=L2)


def gathers() -> Case:
    """Rows of tables by each feature, over and over: the sum of three Gathers of 11 features."""
    graph = GraphBuilder(11, seed=2)
    indices = _indices(graph, "x")
    rows = [graph.node("Gather", graph.weight(200, 1, scale=0.5), indices) for _ in range(3)]
    total = rows[0]
    for row in rows[1:]:
        total = graph.node("Add", total, row)
    output = graph.gemm(graph.node("Flatten", total, axis=1), 11, 1)
    return Case(model=graph.model(output, 1), loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, clip=L2)


def wide_ids() -> Case:
    """Rows of one wide table by three pairs of bytes, in two Gathers; some pairs are beyond its rows."""
    graph = GraphBuilder(7, seed=7)
    codes = _indices(graph, "x")
    table = graph.weight(50_000, 2, scale=0.5)
    values = []
    for places in ((0, 2), (4,)):
        low, high = (
            graph.node("Gather", codes, graph.tensor(np.array([at + k for at in places])), axis=1)
            for k in (0, 1)
        )
        index = graph.node("Add", low, graph.node("Mul", high, graph.tensor(np.array(256))))
        values.append(graph.node("Flatten", graph.node("Gather", table, index), axis=1))
    output = graph.gemm(graph.node("Concat", *values, "x", axis=1), 13, 1)
    return Case(model=graph.model(output, 1), loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, clip=L2)


def images() -> Case:
    """Convolutions and both pools."""
    graph = GraphBuilder(16, seed=3)
    value = _shaped(graph, "x", 1, 4, 4)
    value = graph.node("Conv", value, graph.weight(2, 1, 2, 2), graph.weight(2, scale=0.1), pads=[1, 0, 0, 1])
    value = graph.node("MaxPool", graph.node("LeakyRelu", value), kernel_shape=[2, 2], strides=[2, 2])
    value = graph.node("Conv", value, graph.weight(1, 2, 1, 1))
    value = graph.node("AveragePool", value, kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    output = graph.gemm(graph.node("Flatten", value, axis=1), 4, 3, bias=False)
    return Case(model=graph.model(output, 3), loss=Loss.CROSS_ENTROPY, clip=L1)


def curves() -> Case:
    """Normalisation and every curve that reads a table; without biases."""
    graph = GraphBuilder(6, seed=4)
    value = graph.gemm("x", 6, 3, bias=False)
    statistics = [graph.weight(3, scale=0.2), graph.tensor(np.full(3, 2.0, np.float32))]
    value = graph.node(
        "BatchNormalization", value, graph.weight(3, scale=1.0), graph.weight(3, scale=1.0), *statistics
    )
    for curve in ("Elu", "Sigmoid", "Tanh", "Softplus"):
        value = graph.gemm(graph.node(curve, value), 3, 3, bias=False, scale=4.0)
    return Case(
        model=graph.model(graph.node("Softmax", value, axis=1), 3), loss=Loss.CROSS_ENTROPY, clip=WIDE
    )


def rates() -> Case:
    """A rate, on the portable backend, adaptively clipped."""
    graph = GraphBuilder(5, seed=5)
    output = graph.gemm(graph.node("Relu", graph.gemm("x", 5, 6, scale=9.0)), 6, 1, scale=9.0)
    clip = Clip(norm=Norm.L2, bound=0.8, frac_bits=32, is_counted=True)
    return Case(model=graph.model(output, 1), loss=Loss.POISSON, clip=clip, is_portable=True)


def crosses() -> Case:
    """Parameters and values that are added and multiplied, repeated entries, a layer's normalisation."""
    graph = GraphBuilder(6, seed=6)
    value = first = graph.node("Tanh", graph.gemm("x", 6, 4))
    value = graph.node("Add", graph.node("Mul", first, graph.gemm(value, 4, 1)), graph.weight(4))
    value = graph.node("LayerNormalization", value, graph.weight(4, scale=1.0), graph.weight(4), epsilon=1e-5)
    value = graph.node("Mul", graph.node("Sub", value, first), graph.weight(1, scale=1.0))
    return Case(model=graph.model(graph.gemm(value, 4, 3), 3), loss=Loss.CROSS_ENTROPY, clip=L2)


CASES: dict[str, Callable[[], Case]] = {
    one.__name__: one for one in (gates, gathers, wide_ids, images, curves, rates, crosses)
}


def features(width: int) -> dict[str, NDArray[np.uint8]]:
    """Records that differ from one another as much as they can."""
    rng = np.random.default_rng(6)
    places = np.arange(width)
    return {
        "random": rng.integers(0, 200, (RECORDS, width)).astype(np.uint8),
        "zero": np.zeros((RECORDS, width), np.uint8),
        "one": np.broadcast_to((places == width - 1).astype(np.uint8), (RECORDS, width)).copy(),
        "constant": np.full((RECORDS, width), 199, np.uint8),
        "largest": np.full((RECORDS, width), 255, np.uint8),
        "different": np.broadcast_to(places % 200, (RECORDS, width)).astype(np.uint8),
        "last": np.where(places == 0, 0, 199 - places % 7).astype(np.uint8) * np.ones((RECORDS, 1), np.uint8),
    }


def works(case: Case) -> Iterator[tuple[str, Callable[[], None]]]:
    """A round and an evaluation for each kind of records, with the labels in one order or the other."""
    backend = Float64Backend() if case.is_portable else Int8Backend()
    exact = ExactEngine(case.model, case.loss, case.clip, backend=backend)
    weights = quantised(case.model)
    for name, chosen in features(case.model.input_width).items():
        shares = np.full((RECORDS, case.labels), 0 if name == "zero" else MODULUS // 3, np.uint64)
        labels = np.broadcast_to(np.arange(case.labels, dtype=np.uint32), shares.shape)
        labels = labels[:, ::-1] if name in ("random", "one") else labels
        batch = Batch(features=chosen, labels=np.ascontiguousarray(labels), mask_shares=shares)

        def work(batch: Batch = batch) -> None:
            exact.masked_sum(weights, batch)
            score(case.model, case.loss, weights, batch.features, 5)

        yield name, work


def proofs() -> Iterator[tuple[str, Callable[[], None]]]:
    """A helper's side of proofs of every kind, for shares and openings that differ as much as they can."""
    shape = proof_shape(3, MEASURED)
    for value in (0, 1, MODULUS - 1, MODULUS // 3):
        elements, openings, points = (
            np.full((RECORDS, width), value, np.uint64)
            for width in (shape.num_elements, shape.num_openings, POINTS)
        )
        digests = np.zeros((RECORDS, 32), np.uint8)
        table = ProofTable(openings=openings, others=digests, blinds=digests, elements=elements)

        def work(table: ProofTable = table, points: FieldVector = points) -> None:
            for role in (0, 1):
                fast_residues(shape, role, table, points)

        yield str(value), work


def kinds(name: str) -> list[tuple[str, Callable[[], None]]]:
    """The works of a case, the first of them done once: loops, tables and arrays are there."""
    works_of = list(proofs() if name == PROOFS else works(CASES[name]()))
    works_of[0][1]()
    return works_of


def loops() -> dict[str, Any]:
    """Every compiled loop of the exact path and of proofs."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]
    return {
        name: loop
        for module in (*modules, residues)
        for name, loop in vars(module).items()
        if hasattr(loop, "overloads")
    }


def count_instructions(name: str) -> Counts:
    """By kind of records, the instructions of each loop."""
    counter = InstructionCounter(loops())
    return {kind: dict(counter.count(work)) for kind, work in kinds(name)}


def count_lines(name: str) -> Counts:
    """By kind of records, the lines of each function of the exact path; no loop may be compiled."""
    return {kind: _lines(work) for kind, work in kinds(name)}


def _lines(work: Callable[[], None]) -> dict[str, int]:
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        counts[frame.f_code.co_name] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return dict(counts)


def clipped(name: str) -> list[bool]:
    """Whether values of a case were clipped: both is to be tried."""
    seen: set[bool] = set()

    def noting(squares: Any, coefficients: Any, clip: Clip) -> Any:
        found = clip_factors(squares, coefficients, clip)
        seen.update((found != coefficients).reshape(-1).tolist())
        return found

    with patch("helper.gradient.exact.engine.clip_factors", noting):
        for _, work in kinds(name):
            work()
    return sorted(seen)


def main() -> None:
    """Count and print, by case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=[*CASES, PROOFS])
    parser.add_argument("--lines", action="store_true", help="of loops that are not compiled")
    parser.add_argument("--old", action="store_true", help="with loops that are to be caught")
    asked = parser.parse_args()
    count = count_lines if asked.lines else count_instructions
    digits = BackendChoice(
        bytes_by_weights="int8", rows_by_weights="int8", sum_of_bytes="int8", sum_of_rows="int8"
    )
    is_old = old_loops.in_place() if asked.old else nullcontext()
    with is_old, patch.object(fastest, "measure", lambda: digits):  # a time must choose no loop here
        print(json.dumps({name: count(name) for name in asked.cases}))


if __name__ == "__main__":
    main()

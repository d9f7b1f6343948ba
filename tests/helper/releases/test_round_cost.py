"""Jobs whose rounds would take too long are refused before they cost anything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from helper.gradient.choose import choose_engine
from helper.trust.floors import WorkEstimate
from maskedlark import canonical
from maskedlark.errors import JobReason
from maskedlark.model.core_seconds import round_seconds
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from tests.bench.models_ids import wide_network
from tests.helper.parties import ASKED, FLOORS, MODEL, Scene
from tests.onnx_builders import encoded, node, weights
from tests.refusals import refused


def chain(depth: int, entries: int, width: int = 4) -> bytes:
    """One number of the features, written many times, through many activations, and averaged again."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Expand", ["h", "shape"], ["e0"])]
    nodes += [node("Exp", [f"e{place}"], [f"e{place + 1}"]) for place in range(depth)]
    nodes.append(node("ReduceMean", [f"e{depth}"], ["y"], axes=[1]))
    shape = onnx.numpy_helper.from_array(np.array([1, entries], np.int64), "shape")
    return encoded(nodes, [weights("w", width, 1), shape], opset=13, width=width)


def test_a_chain_of_sixty_exponentials_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    dataset = scene.seal(30)
    scene.parties[0].floors = replace(FLOORS, max_round_seconds=0.1)
    scene.restart(engine_for=choose_engine)
    onerous = chain(60, 20_000, scene.task.num_features)
    model = parse(onerous, num_features=scene.task.num_features)
    spec = scene.job(dataset, model_digest=model.digest)
    with refused(JobReason.TOO_LARGE, r"about [\d.]+ core seconds, but this helper allows at most 0.1"):
        scene.cores[0].jobs.start(canonical.encode(spec), onerous, ASKED)
    assert scene.cores[0].counts().open_jobs == 0
    scene.cores[0].jobs.start(canonical.encode(scene.job(dataset)), MODEL, ASKED)


def test_the_estimate_grows_with_records_labels_depth_and_width() -> None:
    def seconds(depth: int, entries: int, records: int = 50, candidates: int = 2) -> float:
        model = parse(chain(depth, entries), num_features=4)
        return round_seconds(model, "general", records=records, candidates=candidates)

    base = seconds(60, 10_000)
    assert seconds(60, 10_000, records=100) == pytest.approx(2 * base, rel=1e-3)
    assert seconds(60, 10_000, candidates=4) == pytest.approx(2 * base, rel=1e-3)
    assert seconds(120, 10_000) == pytest.approx(2 * base, rel=0.05)
    assert seconds(60, 20_000) == pytest.approx(2 * base, rel=0.05)


def test_the_chain_that_was_found_is_estimated_at_what_it_took() -> None:
    """Sixty nodes as large as the parser lets them be, 50 records: 14 s were measured."""
    model = parse(chain(60, (1 << 24) // 62), num_features=4)
    assert 7 < round_seconds(model, "general", records=50, candidates=2) < 28


def test_honest_jobs_are_far_below_the_default_limit() -> None:
    mnist = parse(dense_network([784, 500, 10], "relu", seed=1), num_features=784)
    assert round_seconds(mnist, "exact", records=60_000, candidates=10) < FLOORS.max_round_seconds / 10
    large = parse(dense_network([784, 8_000, 10], "relu", seed=1), num_features=784)
    assert round_seconds(large, "exact", records=1_000_000, candidates=2) < FLOORS.max_round_seconds


def test_a_wide_table_costs_the_rows_that_records_read() -> None:
    def seconds(rows: int, path: str) -> float:
        model = parse(wide_network(tables=10, rows=rows, width=8, hidden=32), num_features=20)
        return round_seconds(model, path, records=10_000, candidates=2)

    assert seconds(60_000, "exact") < 5 * seconds(257, "exact") + 2  # 4.8 million parameters to answer with
    assert seconds(60_000, "general") > 100 * seconds(257, "general")


def test_an_estimate_that_is_no_number_is_refused() -> None:
    with refused(JobReason.TOO_LARGE):
        FLOORS.check_cost(WorkEstimate(seconds=float("nan"), num_bytes=0), "a round")

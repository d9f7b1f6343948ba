"""What work is estimated at, to the last byte: helpers of two releases refuse the same jobs and questions,
and a limit that an operator set goes on holding the work that it held."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from helper.releases.query_cost import evaluation_cost, query_cost
from helper.releases.round_cost import round_cost
from maskedlark.model.core_seconds import round_seconds, scoring_seconds
from maskedlark.model.graph import GraphCost, Model, Node, Parameter
from maskedlark.releases.counting import Condition
from maskedlark.releases.query import Axis, Measure, MeasureKind
from maskedlark.releases.update import UpdateSpec
from tests.builders import world
from tests.maskedlark.query_specs import discovery, evaluation, query
from tests.measured import SHOP
from tests.update_builders import FORM, update_round, update_world

OF = world(measurement=SHOP)
NS = 1e-9
RECORDS = 1_000
ROW_BYTES = OF.task.opened_length - OF.task.num_features
PURCHASES = Measure(value="purchase", kind=MeasureKind.HISTOGRAM, scale=8)
WHERE = (Condition(key="campaign", code=1), Condition(key="campaign", code=2))
MODEL = Model(
    input_name="x",
    input_width=12,
    output_name="y",
    output_width=1,
    outputs=(),
    nodes=(
        Node(operator="Gather", inputs=("table", "codes"), outputs=("rows",), attributes={}),
        Node(operator="Gemm", inputs=("rows", "dense"), outputs=("y",), attributes={}),
    ),
    parameters=(Parameter(name="table", shape=(500, 8)), Parameter(name="dense", shape=(8, 1))),
    initial_values=(),
    constants={},
    work=GraphCost(multiplications=700, entries=50),
    digest=b"",
)


def test_a_query_costs_its_looks_at_records_and_its_numbers() -> None:
    axes = (Axis(key="place", size=3), Axis(key="language", size=4))
    spec = query(OF, group_by=axes, levels=(1, 2), measures=(PURCHASES,), where=WHERE[:1])
    assert spec.num_columns(OF.task) == 5
    numbers = spec.num_numbers(OF.task)
    found = query_cost(OF.task, spec, RECORDS)
    looks = 1 + 4 * 2 + 8 * 2 + 2 * 2 * 5
    assert found.seconds == pytest.approx(NS * (RECORDS * looks * 20 + 2 * numbers * 400), rel=1e-12)
    assert found.num_bytes == 80 * numbers + 2 * RECORDS * ROW_BYTES + 40 * RECORDS * 3


def test_a_discovery_costs_a_sort_of_each_key() -> None:
    spec = discovery(OF, keys=("campaign",), max_codes=10, where=(Condition(key="place", code=1),))
    found = query_cost(OF.task, spec, RECORDS)
    assert found.seconds == pytest.approx(NS * (RECORDS * (400 + 20) + spec.num_values * 400), rel=1e-12)
    assert found.num_bytes == 80 * spec.num_values + 2 * RECORDS * ROW_BYTES + 40 * RECORDS


def test_a_sum_of_updates_costs_each_coordinate_of_each_device() -> None:
    task = update_world().task
    spec = UpdateSpec(dataset_id=bytes(32), round=update_round(task))
    found = query_cost(task, spec, RECORDS)
    assert found.seconds == pytest.approx(NS * FORM.length * (RECORDS * 12 + 400), rel=1e-12)
    assert found.num_bytes == 80 * FORM.length


def test_an_evaluation_costs_scores_edges_and_counts() -> None:
    spec = evaluation(OF, num_bins=10)
    found = evaluation_cost(OF.task, spec, MODEL, records=RECORDS, scoring_bytes=12_345)
    counted = RECORDS * OF.task.num_candidates
    assert spec.num_numbers == 20
    assert found.seconds == pytest.approx(
        scoring_seconds(MODEL, records=RECORDS) + NS * (4 * counted * 20 + 10 * 40_000 + 20 * 400), rel=1e-12
    )
    assert found.num_bytes == 12_345 + 2 * RECORDS * ROW_BYTES + 24 * counted + 80 * 20


def test_scores_cost_the_way_forward() -> None:
    assert scoring_seconds(MODEL, records=RECORDS) == pytest.approx(
        NS * RECORDS * (0.1 * 700 + 2.0 * 50), rel=1e-12
    )


@pytest.mark.parametrize(
    ("path", "each"),
    [("exact", 0.1 * 700 + 2.0 * 50 + 0.1 * 8), ("general", 1.0 * 700 + 8.0 * 50 + 25.0 * 4_008)],
)
def test_a_round_costs_its_work_for_each_label_and_its_answer(path: str, each: float) -> None:
    """On the exact path a record reads rows of a table, and not the table."""
    found = round_seconds(MODEL, path, records=RECORDS, candidates=3)
    assert found == pytest.approx(NS * (RECORDS * 3 * each + 250.0 * 4_008), rel=1e-12)


@pytest.mark.parametrize(("path", "copies"), [("exact", 2), ("general", 4)])
@pytest.mark.parametrize(("engine_bytes", "most"), [(1 << 20, 1 << 20), (1, 32 * 4_008)])
def test_a_round_holds_its_sum_or_its_answer_and_its_records(
    path: str, copies: int, engine_bytes: int, most: int
) -> None:
    engine: Any = SimpleNamespace(path=path, round_bytes=lambda records, labels: engine_bytes)
    found = round_cost(MODEL, engine, records=RECORDS, candidates=3)
    assert found.num_bytes == (4 << 20) + 16 * 4_008 + most + copies * RECORDS * (12 + 12 * 3)
    assert found.seconds == round_seconds(MODEL, path, records=RECORDS, candidates=3)


def test_what_a_dense_layer_reads_is_read_whole() -> None:
    no_table = replace(MODEL, nodes=MODEL.nodes[1:])
    found = round_seconds(no_table, "exact", records=1, candidates=1)
    assert found == pytest.approx(NS * (0.1 * 700 + 2.0 * 50 + 0.1 * 4_008 + 250.0 * 4_008), rel=1e-12)

"""Queries: what one report can change of an answer, what that is charged as, and what is refused."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskedlark.canonical import build, decode, encode
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.counting import COUNT_UNITS, Condition
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.grouping import answer_query, cells_to_show
from maskedlark.releases.query import MAX_NUMBERS, Axis, Measure, MeasureKind, QuerySpec
from maskedlark.releases.release import combine, fitting
from maskedlark.reports.measurement import Measurement
from tests import charge_builders
from tests.maskedlark.query_specs import COUNT
from tests.maskedlark.query_specs import discovery as discovery_of
from tests.maskedlark.query_specs import query as query_of
from tests.measured import SHOP, columns_of, measuring_world, opened
from tests.refusals import refused

OF = measuring_world()
MEASUREMENT = build(Measurement, SHOP)
NOISY = {
    Mechanism.GAUSSIAN: measuring_world(mechanism="gaussian", norm="l2"),
    Mechanism.LAPLACE: measuring_world(mechanism="laplace", norm="l1"),
}


query = partial(query_of, OF)
discovery = partial(discovery_of, OF)
MEASURES = st.lists(
    st.sampled_from(
        [
            ("count", MeasureKind.SUM),
            ("click", MeasureKind.SUM),
            ("purchase", MeasureKind.SUM),
            ("purchase", MeasureKind.HISTOGRAM),
        ]
    ),
    min_size=1,
    unique=True,
)


@st.composite
def queries(draw: st.DrawFn) -> QuerySpec:
    measures = tuple(
        Measure(value=name, kind=kind, scale=draw(st.integers(1, 1000))) for name, kind in draw(MEASURES)
    )
    names = draw(st.permutations(["campaign", "place", "language"]))[: draw(st.integers(0, 3))]
    axes = tuple(Axis(key=name, size=draw(st.integers(1, 4))) for name in names)
    first = draw(st.integers(0, len(axes)))
    where = (Condition(key="language", code=draw(st.integers(0, 3))),) if draw(st.booleans()) else ()
    return query(measures=measures, group_by=axes, levels=tuple(range(first, len(axes) + 1)), where=where)


@st.composite
def record(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    return [draw(st.integers(0, 4)), draw(st.integers(0, 2)), draw(st.integers(0, 3))], [
        draw(st.integers(0, 1)),
        draw(st.integers(-5, 100)),
    ]


def answer(
    spec: QuerySpec, records: list[tuple[list[int], list[int]]], is_last_zero: bool
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What both helpers' answers add to, every cell shown, with the last report's contribution there or
    zeroed."""
    keys = np.array([keys for keys, _ in records], np.uint32)
    columns = columns_of(MEASUREMENT, np.array([values for _, values in records], np.int64))
    if is_last_zero:
        columns[-1] = 0
    shares = opened(OF, keys, columns, seeded(4))
    noise = partial(noise_vector, randomness=seeded(5))
    domains = [None] * len(spec.group_by)
    first, second = (
        answer_query(
            task=OF.task, spec=spec, pair=OF.pair(role), shares=shares[role], domains=domains, noise=noise
        )
        for role in (0, 1)
    )
    return combine(first, second)


@settings(max_examples=120, deadline=None)
@given(queries(), st.lists(record(), min_size=1, max_size=6))
def test_the_sensitivity_bounds_the_change_that_one_report_can_make(
    spec: QuerySpec, records: list[tuple[list[int], list[int]]]
) -> None:
    change = [int(value) for value in answer(spec, records, False) - answer(spec, records, True)]
    assert sum(abs(value) for value in change) <= spec.sensitivity(MEASUREMENT, Mechanism.LAPLACE)
    assert sum(value * value for value in change) <= spec.sensitivity(MEASUREMENT, Mechanism.GAUSSIAN) ** 2


@settings(max_examples=60, deadline=None)
@given(queries(), st.lists(record(), min_size=1, max_size=6))
def test_the_count_sensitivity_bounds_what_one_report_changes_of_all_counts(
    spec: QuerySpec, records: list[tuple[list[int], list[int]]]
) -> None:
    def counts(held: list[tuple[list[int], list[int]]]) -> list[int]:
        keys = np.array([keys for keys, _ in held], np.uint32).reshape(-1, 3)
        measured = opened(OF, keys, np.zeros((len(held), 8), np.int64), seeded(1))[0].measured
        assert measured is not None
        cells = cells_to_show(OF.task, spec, seeded(2), measured, [None] * len(spec.group_by))
        found = [
            np.bincount(cell[cell >= 0], minlength=spec.num_cells(level))
            for level, cell in zip(spec.levels, cells, strict=True)
        ]
        return [int(count) for count in np.concatenate(found)]

    # k is 1 and there is no noise, so that every cell with a report is shown, and a report is where its keys
    # say.
    change = [
        COUNT_UNITS * (after - before)
        for after, before in zip(counts(records), counts(records[:-1]), strict=True)
    ]
    assert sum(abs(value) for value in change) <= spec.count_sensitivity(Mechanism.LAPLACE)
    assert sum(value * value for value in change) <= spec.count_sensitivity(Mechanism.GAUSSIAN) ** 2


def test_the_sensitivity_is_reached_by_the_largest_report() -> None:
    spec = query(
        measures=(COUNT, Measure(value="purchase", scale=3)),
        group_by=(Axis(key="place", size=3),),
        levels=(0, 1),
    )
    change = answer(spec, [([0, 1, 0], [1, 100])], False)
    assert int(np.abs(change).sum()) == spec.sensitivity(MEASUREMENT, Mechanism.LAPLACE) == 2 * (8 + 300)
    assert spec.sensitivity(MEASUREMENT, Mechanism.GAUSSIAN) == 425  # sqrt(2 (8^2 + 300^2)) = 424.4..


def test_sums_are_charged_once_and_looks_at_counts_against_the_ad_server_alone() -> None:
    task = NOISY[Mechanism.GAUSSIAN].task
    spec = query(noise_multiplier=3.0, threshold_noise_multiplier=9.0, group_by=(Axis(key="place", size=3),))
    assert spec.charges(task) == (
        charge_builders.gaussian(3.0),
        charge_builders.gaussian(9.0, rounds=2, is_common=True),
    )
    whole = spent(spec.charges(task), task.delta)
    alone = spent(spec.charges(task)[:1], task.delta)
    assert whole.colluding == alone.colluding
    assert whole.ad_server > alone.ad_server


def test_a_second_look_is_charged_where_rests_may_be_hidden() -> None:
    task, axes = NOISY[Mechanism.GAUSSIAN].task, (Axis(key="place", size=3),)
    for is_shown, looks in ((True, 1), (False, 2)):
        spec = query(
            noise_multiplier=3.0,
            threshold_noise_multiplier=9.0,
            group_by=axes,
            levels=(0, 1),
            are_rests_shown=is_shown,
        )
        assert spec.charges(task)[1].rounds == looks


def test_rests_are_shown_only_where_hiding_them_hides_nothing() -> None:
    axes = (Axis(key="place", size=3),)
    for wrong in ({"group_by": axes, "levels": (1,)}, {"levels": (0,)}):
        with pytest.raises(InvalidTask, match="are_rests_shown"):
            query(are_rests_shown=True, **wrong)
    strict = measuring_world({**SHOP, "small_cell_delta": 1e-6})
    spec = query(group_by=axes, levels=(0, 1), are_rests_shown=True)
    with refused(JobReason.MALFORMED):
        spec.check(strict.task, records=10)
    replace(spec, are_rests_shown=False).check(strict.task, records=10)


def test_a_query_without_groups_is_charged_one_look_at_its_count() -> None:
    task = NOISY[Mechanism.GAUSSIAN].task
    _, counts = query(noise_multiplier=3.0, threshold_noise_multiplier=9.0).charges(task)
    assert counts == charge_builders.gaussian(9.0, rounds=1, is_common=True)


def test_a_discovery_costs_its_delta_as_well() -> None:
    task = NOISY[Mechanism.LAPLACE].task
    (charge,) = discovery(noise_multiplier=2.0, delta=1e-6).charges(task)
    assert spent([charge], 1e-6).ad_server == pytest.approx(0.5 + 2e-6)
    assert spent([charge], 9e-7).ad_server == float("inf")
    assert spent([charge, charge], 1.9e-6).ad_server == float("inf")
    assert spent([charge], 0.0).colluding == 0


def test_delta_is_of_common_noise_only() -> None:
    with pytest.raises(ValueError, match="common"):
        charge_builders.laplace(1.0, delta=1e-6)


@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_a_fitting_query_costs_what_it_may_and_hardly_less(mechanism: Mechanism) -> None:
    task = NOISY[mechanism].task
    fitted = fitting(task, query(), epsilon=1.0)
    cost = spent(fitted.charges(task), task.delta).ad_server
    assert 0.97 < cost <= 1.0
    after = fitting(task, query(), epsilon=1.0, already=fitting(task, query(), epsilon=0.5).charges(task))
    assert after.noise_multiplier > fitted.noise_multiplier


def test_without_noise_a_query_has_none() -> None:
    assert fitting(OF.task, query(noise_multiplier=1.0), epsilon=1.0).noise_multiplier == 0


def test_specs_survive_their_canonical_bytes() -> None:
    spec = query(
        group_by=(Axis(key="campaign", size=2, codes_digest=b"c" * 32),),
        where=(Condition(key="place", code=1),),
    )
    assert decode(QuerySpec, encode(spec)) == spec
    assert decode(DiscoverySpec, encode(discovery())) == discovery()
    assert spec.transcript != replace(spec, levels=(0, 1)).transcript


PLACE, LANGUAGE = Axis(key="place", size=3), Axis(key="language", size=4)
TWICE = (Condition(key="place", code=1), Condition(key="place", code=2))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"levels": (1,)}, "levels must ascend"),
        ({"group_by": (PLACE, LANGUAGE), "levels": (0, 2)}, "levels must ascend"),
        ({"group_by": (PLACE,), "levels": (0,)}, "levels must ascend"),
        ({"group_by": (PLACE, PLACE), "levels": (2,)}, "keys must be distinct"),
        ({"where": TWICE}, "keys must be distinct"),
        ({"measures": (COUNT, COUNT)}, "measures must be distinct"),
        ({"measures": ()}, "measures: "),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_a_query_that_makes_no_sense_is_no_query(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        query(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"keys": ()}, "keys: "),
        ({"keys": ("place", "place")}, "keys must be distinct"),
        ({"where": TWICE}, "keys must be distinct"),
        ({"max_codes": 0}, "max_codes"),
        ({"max_codes": (1 << 16) + 1}, "max_codes"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.5}, "delta"),
        ({"delta": 0.0}, "delta"),
    ],
    ids=str,
)
def test_a_discovery_that_makes_no_sense_is_no_discovery(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        discovery(**changes)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (query(measures=(Measure(value="view", scale=1),)), JobReason.UNDECLARED),
        (
            query(measures=(Measure(value="click", kind=MeasureKind.HISTOGRAM, scale=1),)),
            JobReason.UNDECLARED,
        ),
        (
            query(measures=(Measure(value="count", kind=MeasureKind.HISTOGRAM, scale=1),)),
            JobReason.UNDECLARED,
        ),
        (query(group_by=(Axis(key="age", size=3),)), JobReason.UNDECLARED),
        (query(where=(Condition(key="age", code=3),)), JobReason.UNDECLARED),
        (discovery(keys=("age",)), JobReason.UNDECLARED),
        (discovery(where=(Condition(key="age", code=3),)), JobReason.UNDECLARED),
        (query(group_by=(Axis(key="campaign", size=1 << 20),)), JobReason.DOMAIN_TOO_LARGE),
        (query(noise_multiplier=1.0), JobReason.NOISE_OUT_OF_RANGE),
        (discovery(noise_multiplier=2.0), JobReason.NOISE_OUT_OF_RANGE),
        (query(measures=(Measure(value="purchase", scale=1 << 31),) * 1), None),
    ],
)
def test_what_a_task_does_not_declare_or_hold_is_refused(
    spec: QuerySpec | DiscoverySpec, reason: JobReason | None
) -> None:
    if reason is None:
        spec.check(OF.task, records=1000)
        return
    with refused(reason):
        spec.check(OF.task, records=1000)


def test_sums_that_could_wrap_in_the_field_are_refused() -> None:
    spec = query(measures=(Measure(value="purchase", scale=1 << 31),))
    with refused(JobReason.OVERFLOW):
        spec.check(OF.task, records=1 << 30)


def test_no_noise_where_the_task_has_some_is_refused() -> None:
    for changes in ({"noise_multiplier": 1.0}, {"threshold_noise_multiplier": 1.0}):
        spec = query(measures=(replace(COUNT, scale=1 << 20),), **changes)
        with refused(JobReason.NOISE_OUT_OF_RANGE):
            spec.check(NOISY[Mechanism.GAUSSIAN].task, records=100)


def test_a_task_without_measurement_answers_no_query() -> None:
    from tests.builders import world

    with refused(JobReason.UNDECLARED):
        query().check(world().task, records=100)


def test_the_length_of_an_answer_counts_cells_rests_and_columns() -> None:
    spec = query(
        measures=(COUNT, Measure(value="purchase", kind=MeasureKind.HISTOGRAM, scale=1)),
        group_by=(Axis(key="campaign", size=4), Axis(key="place", size=3)),
        levels=(0, 1, 2),
    )
    assert [spec.num_cells(level) for level in spec.levels] == [1, 4 + 1, 4 * (3 + 1)]
    assert spec.num_numbers(OF.task) == (1 + 5 + 16) * (1 + 5)
    assert spec.num_numbers(OF.task) < MAX_NUMBERS

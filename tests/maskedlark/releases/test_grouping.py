"""The answer to a query at both helpers, against the same sums in the clear, slowly."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from maskedlark.canonical import encode
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.numbers.field import MODULUS, FieldVector
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.privacy.samplers import discrete_gaussian, discrete_laplace
from maskedlark.randomness import seeded
from maskedlark.releases.counting import COUNT_UNITS, Condition
from maskedlark.releases.discovery import answer_discovery
from maskedlark.releases.grouping import (
    NOWHERE,
    _positions,
    answer_query,
    cells_to_show,
    sum_groups,
)
from maskedlark.releases.query import Axis, Measure, QuerySpec, codes_digest
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.input_shares import MeasuredShares
from tests.builders import World
from tests.maskedlark.query_specs import discovery, query
from tests.measured import SHOP, columns_of, measuring_world, opened
from tests.refusals import refused

COUNT = Measure(value="count", scale=1)
PURCHASE = Measure(value="purchase", scale=7)


def with_k(k: int, **changes: Any) -> World:
    return measuring_world({**SHOP, "min_cell_count": k}, **changes)


def random_records(count: int, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    keys = np.stack(
        [draw.integers(100, 106, count), draw.integers(0, 3, count), draw.integers(0, 4, count)], axis=1
    )
    return keys.astype(np.uint32), np.stack(
        [draw.integers(0, 2, count), draw.integers(-5, 101, count)], axis=1
    )


def answers(
    of: World, spec: QuerySpec, keys: NDArray[np.uint32], columns: NDArray[np.int64], domains: Sequence[Any]
) -> list[AggregateShare]:
    shares = opened(of, keys, columns, seeded(4))
    return [
        answer_query(
            task=of.task,
            spec=spec,
            pair=of.pair(role),
            shares=shares[role],
            domains=domains,
            noise=partial(noise_vector, randomness=seeded(role)),
        )
        for role in (0, 1)
    ]


def oracle(
    spec: QuerySpec, keys: NDArray[np.uint32], columns: NDArray[np.int64], domains: Sequence[Any], k: int
) -> list[int]:
    """The same sums without noise, from the definition: dictionaries of groups, Python integers."""
    places = {"campaign": 0, "place": 1, "language": 2}
    rows = [
        ([int(code) for code in held], [int(value) for value in shared])
        for held, shared in zip(keys, columns, strict=True)
        if all(held[places[one.key]] == one.code for one in spec.where)
    ]
    codes = [
        list(range(axis.size)) if domain is None else domain.tolist()
        for axis, domain in zip(spec.group_by, domains, strict=True)
    ]
    numbers: list[int] = []
    alive = list(range(len(rows)))
    for level in range(len(spec.group_by) + 1):
        names = [places[axis.key] for axis in spec.group_by[:level]]
        groups = [tuple(row[0][name] for name in names) for row in rows]
        in_domain = [
            row for row in alive if all(groups[row][depth] in codes[depth] for depth in range(level))
        ]
        if level not in spec.levels:
            alive = in_domain
            continue
        sizes = Counter(groups[row] for row in range(len(rows)))
        own = [row for row in in_domain if sizes[groups[row]] >= k]
        sums: dict[tuple[Any, ...], list[int]] = {}
        members: Counter[tuple[Any, ...]] = Counter()
        for row in alive:
            above = groups[row][:-1]
            if level > 0 and not all(code in codes[depth] for depth, code in enumerate(above)):
                continue
            if row in own:
                cell: tuple[Any, ...] = groups[row]
            elif level > 0:
                cell = (*above, "rest")
            else:
                continue
            members[cell] += 1
            old = sums.get(cell, [0, 0])
            sums[cell] = [old[0] + rows[row][1][0], old[1] + 7 * rows[row][1][2]]
        cells = (
            [()]
            if level == 0
            else [
                (*above, last)
                for above in product(*codes[: level - 1])
                for last in [*codes[level - 1], "rest"]
            ]
        )
        for cell in cells:
            is_looked_at = not (spec.are_rests_shown and cell and cell[-1] == "rest")
            numbers += sums.get(cell, [0, 0]) if members[cell] >= k or not is_looked_at else [0, 0]
        alive = own
    return numbers


@pytest.mark.parametrize("k", [1, 3, 12, 60, 1000])
@pytest.mark.parametrize("first_level", [0, 1, 2])
@pytest.mark.parametrize("where", [(), (Condition(key="language", code=2),)])
def test_without_noise_the_answer_is_the_sums_in_the_clear(
    k: int, first_level: int, where: tuple[Condition, ...]
) -> None:
    of = with_k(k)
    keys, values = random_records(300, 1)
    columns = columns_of(of.task.measurement, values)  # type: ignore[arg-type]
    columns[::5] = 0  # fake reports
    listed = np.array([100, 101, 103, 999], np.uint32)
    axes = (Axis(key="campaign", size=4, codes_digest=codes_digest(listed)), Axis(key="place", size=2))
    spec = query(
        of,
        measures=(COUNT, PURCHASE),
        group_by=axes,
        levels=tuple(range(first_level, 3)),
        where=where,
        are_rests_shown=first_level == 0 and k != 12,
    )
    first, second = answers(of, spec, keys, columns, [listed, None])
    assert combine(first, second).tolist() == oracle(spec, keys, columns, [listed, None], k)


def test_a_small_cell_looks_like_an_empty_one_and_its_reports_are_in_the_rest() -> None:
    of = with_k(3)
    keys = np.array([[0, place, 0] for place in [0, 0, 0, 0, 1, 1, 2]], np.uint32)
    spec = query(of, measures=(COUNT,), group_by=(Axis(key="place", size=3),), levels=(0, 1))
    first, second = answers(of, spec, keys, np.ones((7, 8), np.int64), [None])
    #                                        total | seattle, oslo, lima, rest
    assert combine(first, second).tolist() == [7, 4, 0, 0, 3]


@pytest.mark.parametrize(
    ("levels", "are_rests_shown", "shown"),
    [((1,), False, [4, 0, 0, 0]), ((0, 1), True, [6, 4, 0, 0, 2]), ((0, 1), False, [6, 4, 0, 0, 0])],
    ids=["its total is not released", "the total less its parts", "a roll-up that hides rests"],
)
def test_a_rest_that_is_too_small_is_hidden_where_that_hides_anything(
    levels: tuple[int, ...], are_rests_shown: bool, shown: list[int]
) -> None:
    of = with_k(3)
    keys = np.array([[0, place, 0] for place in [0, 0, 0, 0, 1, 2]], np.uint32)
    spec = query(
        of,
        measures=(COUNT,),
        group_by=(Axis(key="place", size=3),),
        levels=levels,
        are_rests_shown=are_rests_shown,
    )
    first, second = answers(of, spec, keys, np.ones((6, 8), np.int64), [None])
    assert combine(first, second).tolist() == shown


@pytest.mark.parametrize(("mechanism", "norm"), [("laplace", "l1"), ("gaussian", "l2")])
@pytest.mark.parametrize("levels", [(0, 1), (1,)])
def test_a_strict_task_hides_cells_and_rests_of_fewer_than_k(
    mechanism: str, norm: str, levels: tuple[int, ...]
) -> None:
    """The worst case: 2,000 cells of k - 1 reports, and rests of as many."""
    places, k, shown = 2_000, 5, {}
    keys = np.array([[0, place, 0] for place in range(places) for _ in range(k - 1)], np.uint32)
    measured = MeasuredShares(keys=keys, value_shares=np.zeros((len(keys), 8), np.uint64))
    for delta in (None, 0.01):
        declared = {
            **SHOP,
            "min_cell_count": k,
            "small_cell_delta": delta,
            "keys": [
                {"name": "campaign"},
                {"name": "place", "size": places},
                {"name": "language", "size": 4},
            ],
        }
        of = measuring_world(declared, mechanism=mechanism, norm=norm)
        spec = query(
            of,
            measures=(COUNT,),
            group_by=(Axis(key="place", size=places),),
            levels=levels,
            noise_multiplier=1.0,
            threshold_noise_multiplier=6.0,
        )
        cells = cells_to_show(of.task, spec, seeded(3), measured, [None])[-1]
        shown[delta] = len(set(cells.tolist()) & set(range(places))) / places
    assert shown[None] > 0.3
    assert shown[0.01] <= 0.01


def test_a_tasks_bytes_are_the_same_unless_it_hides_strictly() -> None:
    assert b"small_cell_delta" not in encode(with_k(3).task)
    strict = measuring_world({**SHOP, "small_cell_delta": 2.0**-20})
    assert b'"small_cell_delta"' in encode(strict.task)
    with pytest.raises(InvalidTask):
        measuring_world({**SHOP, "small_cell_delta": 0.5})


def test_a_dataset_of_fewer_than_the_minimum_shows_nothing() -> None:
    of = measuring_world(SHOP)
    strict = World(task=replace(of.task, min_batch_size=8), bundle=of.bundle, keys=of.keys)
    spec = query(strict, measures=(COUNT,), levels=(0,))
    first, second = answers(strict, spec, np.zeros((7, 3), np.uint32), np.ones((7, 8), np.int64), [])
    assert combine(first, second).tolist() == [0]


def test_both_helpers_leave_out_the_same_cells_though_noise_decides() -> None:
    of = with_k(20, mechanism="gaussian")
    keys, values = random_records(600, 3)
    columns = columns_of(of.task.measurement, values)  # type: ignore[arg-type]
    axes = (Axis(key="place", size=3), Axis(key="language", size=4))
    spec = query(
        of,
        measures=(Measure(value="count", scale=1 << 16),),
        group_by=axes,
        levels=(0, 1, 2),
        noise_multiplier=1.0,
        threshold_noise_multiplier=20.0,
    )
    first, second = answers(of, spec, keys, columns, [None, None])
    # The tags bind each record's cell: it raises if they differ.
    assert len(combine(first, second)) == len(first.vector)


def test_the_noise_on_counts_makes_the_threshold_soft() -> None:
    of = with_k(20, mechanism="laplace", norm="l1")
    measured = MeasuredShares(keys=np.zeros((20, 3), np.uint32), value_shares=np.zeros((20, 8), np.uint64))
    spec = query(
        of,
        measures=(COUNT,),
        group_by=(Axis(key="place", size=1),),
        noise_multiplier=1.0,
        threshold_noise_multiplier=4.0,
    )
    shown = [
        bool((cells_to_show(of.task, spec, seeded(seed), measured, [None])[0] == 0).any())
        for seed in range(300)
    ]
    assert 120 < sum(shown) < 190  # exactly k reports: half of the time, ties in favour


def test_every_answer_is_noised_at_the_stated_scale() -> None:
    of = with_k(1, mechanism="gaussian")
    axes = (Axis(key="campaign", size=20_000),)
    spec = query(
        of,
        measures=(Measure(value="count", scale=1 << 16),),
        group_by=axes,
        noise_multiplier=2.0,
        threshold_noise_multiplier=1.0,
    )
    first, second = answers(of, spec, np.full((2, 3), 2, np.uint32), np.zeros((2, 8), np.int64), [None])
    scale = spec.noise_units(of.task)
    assert scale == 2 << 16
    spread = combine(first, second).astype(np.float64).std() / scale
    assert abs(spread - 2**0.5) < 0.05  # both helpers' noise, each full


def test_helpers_that_are_asked_different_queries_give_only_noise() -> None:
    of = with_k(1)
    keys, values = random_records(50, 5)
    columns = columns_of(of.task.measurement, values)  # type: ignore[arg-type]
    spec = query(of, measures=(COUNT,), group_by=(Axis(key="place", size=3),))
    other = query(of, measures=(COUNT,), group_by=(Axis(key="place", size=3),), query_id=b"r" * 16)
    first, _ = answers(of, spec, keys, columns, [None])
    _, second = answers(of, other, keys, columns, [None])
    with refused(JobReason.HELPERS_DISAGREE):
        combine(first, second)
    mixed = combine(first, AggregateShare(vector=second.vector, agreement_tag=first.agreement_tag))
    assert (np.abs(mixed) > 1 << 40).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-1, 4),
            st.lists(
                st.one_of(
                    st.sampled_from([0, 1, MODULUS - 1, 2**32, 2**32 - 1]), st.integers(0, MODULUS - 1)
                ),
                min_size=3,
                max_size=3,
            ),
        ),
        max_size=60,
    )
)
def test_grouped_field_sums_are_exact(rows: list[tuple[int, list[int]]]) -> None:
    cell = np.array([cell for cell, _ in rows], np.int64)
    shares: FieldVector = np.array([shares for _, shares in rows], np.uint64).reshape(-1, 3)
    expected = [
        [sum(row[column] for at, row in rows if at == group) % MODULUS for column in (2, 0)]
        for group in range(5)
    ]
    assert sum_groups(cell, shares, (2, 0), 5).tolist() == expected


def test_grouped_field_sums_are_exact_over_many_blocks_of_extreme_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = np.full((1 << 20, 1), MODULUS - 1, np.uint64)
    cell = np.zeros(1 << 20, np.int64)
    assert sum_groups(cell, shares, (0,), 1).tolist() == [[(-(1 << 20)) % MODULUS]]
    monkeypatch.setattr("maskedlark.releases.grouping._BLOCK", 1 << 12)
    assert sum_groups(cell, shares, (0,), 1).tolist() == [[(-(1 << 20)) % MODULUS]]
    cell[::2] = NOWHERE
    assert sum_groups(cell, shares, (0,), 1).tolist() == [[(-(1 << 19)) % MODULUS]]


def found(of: World, spec: Any, keys: NDArray[np.uint32]) -> list[int]:
    shares = opened(of, keys, np.zeros((len(keys), 8), np.int64), seeded(6))
    first, second = (
        answer_discovery(task=of.task, spec=spec, pair=of.pair(role), role=role, shares=shares[role])
        for role in (0, 1)
    )
    return [int(value) for value in combine(first, second)]


def test_a_discovery_finds_the_codes_of_enough_reports() -> None:
    of = with_k(3)
    keys = np.array([[code, 0, 0] for code in [7] * 5 + [9] * 2 + [2**32 - 1] * 3], np.uint32)
    assert found(of, discovery(of, max_codes=4), keys) == [2, 7, 2**32 - 1, 0, 0]
    assert found(of, discovery(of, max_codes=1), keys) == [1, 7]
    assert found(of, discovery(of, max_codes=2, where=(Condition(key="place", code=2),)), keys) == [0, 0, 0]


def test_a_noisy_discovery_shows_frequent_codes_and_none_of_a_single_report() -> None:
    of = with_k(1, mechanism="laplace", norm="l1")
    keys = np.array([[code, 0, 0] for code in [7] * 400 + list(range(1000, 2000))], np.uint32)
    assert found(of, discovery(of, max_codes=1000, noise_multiplier=4.0), keys)[:3] == [1, 7, 0]


@pytest.mark.parametrize("mechanism", [Mechanism.LAPLACE, Mechanism.GAUSSIAN])
@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_the_margin_is_passed_by_noise_with_at_most_delta(mechanism: Mechanism, delta: float) -> None:
    of = with_k(1, mechanism=mechanism.value, norm="l1" if mechanism is Mechanism.LAPLACE else "l2")
    spec = discovery(of, noise_multiplier=1.0, delta=delta)
    scale = spec.count_noise_units(of.task)
    sampler = discrete_laplace if mechanism is Mechanism.LAPLACE else discrete_gaussian
    noise = sampler(scale, 40_000, seeded(1))
    assert (noise >= spec.margin(mechanism, scale)).mean() <= delta
    assert scale == COUNT_UNITS


def test_the_answer_to_a_discovery_is_uniform_at_each_helper() -> None:
    of = with_k(1)
    shares = opened(of, np.zeros((5, 3), np.uint32), np.zeros((5, 8), np.int64), seeded(6))
    for role in (0, 1):
        vector = answer_discovery(
            task=of.task, spec=discovery(of), pair=of.pair(role), role=role, shares=shares[role]
        ).vector
        assert (vector > 1 << 40).all()


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\0" * 8,
        np.array([5, 4, 9], "<u4").tobytes(),
        np.array([4, 4, 9], "<u4").tobytes(),
        np.array([4, 5, 8], "<u4").tobytes(),
        b"\0" * 13,
    ],
    ids=["nothing", "too few", "descending", "repeated", "another list", "not whole codes"],
)
def test_codes_that_are_not_the_named_list_are_refused(encoded: bytes) -> None:
    of = with_k(1)
    named = (
        np.frombuffer(encoded, "<u4")
        if len(encoded) == 12 and encoded[8:] == (9).to_bytes(4, "little")
        else np.array([4, 5, 9], "<u4")
    )
    spec = query(
        of,
        measures=(COUNT,),
        group_by=(Axis(key="campaign", size=3, codes_digest=codes_digest(named.astype(np.uint32))),),
    )
    with refused(JobReason.MALFORMED):
        spec.decode_domains(encoded)


def test_codes_are_read_axis_by_axis() -> None:
    of = with_k(1)
    campaigns, languages = np.array([3, 9], np.uint32), np.array([1], np.uint32)
    axes = (
        Axis(key="campaign", size=2, codes_digest=codes_digest(campaigns)),
        Axis(key="place", size=3),
        Axis(key="language", size=1, codes_digest=codes_digest(languages)),
    )
    first, second, third = query(of, measures=(COUNT,), group_by=axes).decode_domains(
        campaigns.tobytes() + languages.tobytes()
    )
    assert first is not None
    assert third is not None
    assert (first.tolist(), second, third.tolist()) == ([3, 9], None, [1])


@pytest.mark.parametrize(
    ("domain", "places"),
    [
        (None, [0, 2, 3, NOWHERE, NOWHERE, NOWHERE]),
        ([2, 5], [NOWHERE, 0, NOWHERE, NOWHERE, 1, NOWHERE]),
        ([0, 3, 2**32 - 1], [0, NOWHERE, 1, NOWHERE, NOWHERE, 2]),
    ],
)
def test_a_code_has_the_place_that_its_domain_gives_it(domain: list[int] | None, places: list[int]) -> None:
    codes = np.array([0, 2, 3, 4, 5, 2**32 - 1], np.uint32)
    given = None if domain is None else np.array(domain, np.uint32)
    assert _positions(codes, 4, given).tolist() == places

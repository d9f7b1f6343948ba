from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.federated.bounding import MAX_UNITS, UpdateBound, _norm_squares, bound_updates

LAYERS = (7, 2, 5)


def rows(seed: int, scale: float, count: int = 4) -> Any:
    return (np.random.default_rng(seed).standard_normal((count, sum(LAYERS))) * scale).astype(np.float32)


@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-6, 0.1, 1.0, 1e4, 1e30]),
    per_layer=st.booleans(),
    clip_norm=st.sampled_from([0.37, 1.0, 100.0]),
)
def test_integer_norms_never_exceed_the_bound(
    seed: int, scale: float, per_layer: bool, clip_norm: float
) -> None:
    bound = UpdateBound(clip_norm=clip_norm, frac_bits=20, is_per_layer=per_layer)
    vectors = bound_updates(rows(seed, scale), [1, 2, 3, 4], bound, LAYERS)
    exact = [sum(int(value) ** 2 for value in row) for row in vectors]
    assert _norm_squares(vectors) == exact
    assert max(exact) <= bound.clip.sensitivity**2
    if per_layer:
        each = bound.clip.of_each(3).sensitivity
        for part in np.split(vectors, np.cumsum(LAYERS)[:-1], axis=1):
            assert max(_norm_squares(part)) <= each**2


def test_a_difference_within_the_bound_is_only_truncated_toward_zero() -> None:
    bound = UpdateBound(clip_norm=10.0, frac_bits=8)
    difference = np.array([[0.999, -0.999, 1 / 256, -1.5 / 256]], np.float32)
    assert bound_updates(difference, [1], bound, (4,)).tolist() == [[255, -255, 1, -1]]


def test_integers_at_the_largest_bound_are_squared_exactly() -> None:
    vectors = np.full((1, 1000), MAX_UNITS, np.int64)
    assert _norm_squares(vectors) == [1000 * MAX_UNITS**2]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    bound = UpdateBound(clip_norm=1.0, weight_cap=3, is_weight_summed=True, is_counted=True)
    together = bound_updates(rows(1, 1.0), [1, 2, 3, 4], bound, LAYERS)
    for place, count in enumerate([1, 2, 3, 4]):
        alone = bound_updates(rows(1, 1.0)[place : place + 1], [count], bound, LAYERS)
        assert (alone[0] == together[place]).all()


def test_weights_scale_the_clipped_difference_and_stand_behind_it() -> None:
    bound = UpdateBound(clip_norm=1.0, frac_bits=20, weight_cap=4, is_weight_summed=True, is_counted=True)
    difference = np.repeat(rows(2, 10.0, 1), 3, axis=0)
    vectors = bound_updates(difference, [0, 1, 8], bound, LAYERS)
    assert not vectors[0].any()
    assert vectors[1, -2:].tolist() == [bound.extra_units // 4, -bound.extra_units]
    assert vectors[2, -2:].tolist() == [bound.extra_units, -bound.extra_units]
    assert np.abs(vectors[1, :-2] * 4 - vectors[2, :-2]).max() <= 4


def test_the_count_tells_whether_the_difference_was_within() -> None:
    bound = UpdateBound(clip_norm=1.0, is_counted=True)
    vectors = bound_updates(np.stack([rows(3, 1e-3, 1)[0], rows(3, 1e3, 1)[0]]), [1, 1], bound, LAYERS)
    assert vectors[:, -1].tolist() == [bound.extra_units, -bound.extra_units]


def test_sensitivity_covers_the_extra_coordinates() -> None:
    bound = UpdateBound(clip_norm=1.0, frac_bits=20, is_weight_summed=True, is_counted=True)
    square = 2**40 + 2 * 2**34
    assert (bound.sensitivity - 1) ** 2 < square <= bound.sensitivity**2


def test_weight_aware_clipping_keeps_more_of_a_light_device() -> None:
    plain = UpdateBound(clip_norm=1.0, weight_cap=10)
    aware = UpdateBound(clip_norm=1.0, weight_cap=10, is_weight_aware=True)
    difference = rows(4, 1.0, 1)
    assert _norm_squares(bound_updates(difference, [1], aware, LAYERS)) > _norm_squares(
        bound_updates(difference, [1], plain, LAYERS)
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"clip_norm": 0.0}, "clip_norm: "),
        ({"clip_norm": float("nan")}, "clip_norm: "),
        ({"clip_norm": 1e5, "frac_bits": 24}, "change frac_bits"),
        ({"clip_norm": 1e-9, "frac_bits": 8}, "change frac_bits"),
        ({"clip_norm": 1.0, "is_weight_aware": True, "is_weight_summed": True}, "weight-aware clipping"),
        ({"clip_norm": 1.0, "weight_cap": -1.0}, "weight_cap"),
    ],
)
def test_a_bound_out_of_range_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        build(UpdateBound, settings)


def test_a_difference_that_is_not_finite_is_refused() -> None:
    bad = rows(5, 1.0)
    bad[2, 3] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        bound_updates(bad, [1, 1, 1, 1], UpdateBound(clip_norm=1.0), LAYERS)

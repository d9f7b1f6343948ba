"""What a task declares to measure, and how one report carries it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskedlark.canonical import build, decode, encode
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.numbers.field import MODULUS, reconstruct, to_signed
from maskedlark.randomness import seeded
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.measurement import Key, Measurement, Value
from maskedlark.reports.report import Example, MeasuredValues
from tests.builders import decode_shares, reports, shares_for, split, world
from tests.measured import SHOP, measuring_world

OF = measuring_world()
MEASUREMENT = build(Measurement, SHOP)
FEATURES = np.zeros(OF.task.num_features, np.uint8)
HONEST = MeasuredValues(keys=(7, 2, 3), values=(1, 30))


def example(label: float | None = 1.0, measured: MeasuredValues | None = HONEST) -> Example:
    return Example(features=FEATURES, label=label, measured=measured)


def both(one: Example) -> tuple[InputShares, InputShares]:
    plaintexts = split(OF.task, one, seeded(1))
    assert [len(plaintext) for plaintext in plaintexts] == [OF.task.share_length] * 2
    shares = []
    for plaintext in plaintexts:
        opened, (reason,) = decode_shares(OF.task, np.frombuffer(plaintext, np.uint8)[None, :])
        assert reason is None
        shares.append(opened)
    return shares[0], shares[1]


def shared_values(one: Example) -> list[int]:
    first, second = both(one)
    assert first.measured is not None
    assert second.measured is not None
    np.testing.assert_array_equal(first.measured.keys, second.measured.keys)
    return [
        int(value)
        for value in to_signed(reconstruct(first.measured.value_shares[0], second.measured.value_shares[0]))
    ]


def test_a_measurement_lengthens_the_view_by_its_keys_and_the_share_by_its_values_too() -> None:
    plain = world().task
    assert plain.measurement is None
    assert OF.task.view_length == plain.view_length + 4 * 3
    assert OF.task.share_length == plain.share_length + 4 * 3 + 8 * 8


def test_a_measurement_survives_its_canonical_bytes() -> None:
    assert decode(Measurement, encode(MEASUREMENT)) == MEASUREMENT


def test_a_report_shares_count_values_and_the_bucket_of_each() -> None:
    #                                            count, click, purchase, its buckets from -5, 0, 1, 20, 50
    assert shared_values(example()) == [1, 1, 30, 0, 0, 0, 1, 0]
    assert shared_values(example(measured=replace(HONEST, values=(0, 0)))) == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_fake_report_shares_zeros_whatever_it_holds() -> None:
    assert shared_values(example(label=None)) == [0] * 8
    assert shared_values(example(label=None, measured=replace(HONEST, values=(99, 10**6)))) == [0] * 8


def test_a_clamped_value_moves_to_its_nearer_bound() -> None:
    assert shared_values(example(measured=replace(HONEST, values=(1, 10**6))))[2:] == [100, 0, 0, 0, 0, 1]
    assert shared_values(example(measured=replace(HONEST, values=(1, -80))))[2:] == [-5, 1, 0, 0, 0, 0]


@settings(deadline=None)
@given(st.integers(-5, 100))
def test_every_value_within_bounds_falls_into_exactly_the_bucket_that_holds_it(value: int) -> None:
    declared = MEASUREMENT.values[1]
    itself, *buckets = declared.encode(value)
    assert itself == value
    assert sum(buckets) == 1
    starts = [*declared.bucket_starts, declared.high + 1]
    at = buckets.index(1)
    assert starts[at] <= value < starts[at + 1]


def test_one_share_of_a_value_tells_nothing_of_it() -> None:
    low, high = (
        both(example(measured=replace(HONEST, values=(1, value))))[0].measured for value in (-5, 100)
    )
    assert low is not None
    assert high is not None
    np.testing.assert_array_equal(low.value_shares, high.value_shares)  # drawn before the value is looked at


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (None, "if, and only if"),
        (replace(HONEST, keys=(7, 2)), "3 keys and 2 values"),
        (replace(HONEST, values=(1,)), "3 keys and 2 values"),
        (replace(HONEST, keys=(7, 3, 3)), "code of a key"),
        (replace(HONEST, keys=(7, -1, 3)), "code of a key"),
        (replace(HONEST, keys=(1 << 32, 2, 3)), "code of a key"),
        (replace(HONEST, values=(2, 30)), "outside its bounds"),
    ],
    ids=[
        "nothing",
        "a key too few",
        "a value too few",
        "code at the size",
        "negative code",
        "code over u32",
        "unclamped bound violated",
    ],
)
def test_a_browser_sends_nothing_that_does_not_fit_the_declaration(
    measured: MeasuredValues | None, reason: str
) -> None:
    with pytest.raises(InvalidTask, match=reason):
        split(OF.task, example(measured=measured), seeded(1))


def test_a_browser_sends_no_values_to_a_task_that_measures_nothing() -> None:
    task = world().task
    with pytest.raises(InvalidTask, match="if, and only if"):
        split(
            task,
            Example(features=np.zeros(task.num_features, np.uint8), label=1.0, measured=HONEST),
            seeded(1),
        )


@pytest.mark.parametrize(
    ("place", "spoiled", "reason"),
    [
        ("key", (4).to_bytes(4, "little"), ReportReason.KEY_OUTSIDE_TASK),
        ("value", MODULUS.to_bytes(8, "little"), ReportReason.MASK_NOT_CANONICAL),
    ],
)
def test_a_helper_drops_shares_that_do_not_fit_the_declaration(
    place: str, spoiled: bytes, reason: ReportReason
) -> None:
    plaintext = bytearray(split(OF.task, example(), seeded(1)).share_0)
    end = OF.task.view_length if place == "key" else OF.task.share_length
    plaintext[end - len(spoiled) : end] = spoiled
    _, (found,) = decode_shares(OF.task, np.frombuffer(bytes(plaintext), np.uint8)[None, :])
    assert found is reason


def test_helpers_that_are_told_different_keys_do_not_agree_on_the_report() -> None:
    sealed = reports(OF, [example(), example(measured=replace(HONEST, keys=(8, 2, 3)))])
    first, second = sealed
    mixed = replace(first, shares=(first.shares[0], second.shares[1]), report_id=first.report_id)
    tags = [OF.opener(role).open(shares_for([mixed], role)) for role in (0, 1)]
    assert tags[0].admitted.is_admitted.all()
    assert not tags[1].admitted.is_admitted.any()  # the other share is of another report id


def test_keys_are_under_the_view_tag_and_values_are_not() -> None:
    tags = []
    for measured in (HONEST, replace(HONEST, keys=(8, 2, 3)), replace(HONEST, values=(0, 0))):
        (sealed,) = reports(OF, [example(measured=measured)], seeded(5))
        tags.append(OF.opener(0).open(shares_for([sealed], 0)).admitted.view_tags.tobytes())
    assert tags[0] != tags[1]
    assert tags[0] == tags[2]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "count", "low": 0, "high": 1}, "count already"),
        ({"name": "Sum", "low": 0, "high": 1}, "name"),
        ({"name": "x", "low": 1, "high": 1}, "low is below high"),
        ({"name": "x", "low": 0, "high": 1 << 31}, "high: "),
        ({"name": "x", "low": 0, "high": 9, "bucket_starts": (1, 2)}, "begin at low"),
        ({"name": "x", "low": 0, "high": 9, "bucket_starts": (0, 5, 5)}, "bucket_starts ascend"),
        ({"name": "x", "low": 0, "high": 9, "bucket_starts": (0, 10)}, "stay within high"),
        ({"name": "x", "low": 0, "high": 9, "parts_per_unit": 0}, "parts_per_unit: "),
        ({"name": "x", "low": 0, "high": 9, "title": "a\nb"}, "title: "),
        ({"name": "x", "low": 0, "high": 9, "title": "a" * 101}, "title: "),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        build(Value, settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"size": 0}, "size: "),
        ({"size": 3, "categories": ("a", "b")}, "lists 2 categories"),
        ({"size": 2, "categories": ("a", "a")}, "categories are distinct"),
        ({"categories": ("a",)}, "lists 1 categories"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        build(Key, {"name": "k", **settings})


@pytest.mark.parametrize(
    ("one", "other"), [({}, {"name": "x"}), ({"title": "y"}, {}), ({"title": "z"}, {"title": "z"})]
)
def test_names_and_titles_are_declared_once(one: dict[str, Any], other: dict[str, Any]) -> None:
    twice = [{"name": "x", "low": 0, "high": 1, **one}, {"name": "y", "low": 0, "high": 1, **other}]
    with pytest.raises(InvalidTask, match="distinct"):
        build(Measurement, {"min_cell_count": 1, "values": twice})
    keys = [{"name": "x", **one}, {"name": "y", **other}]
    with pytest.raises(InvalidTask, match="distinct"):
        build(Measurement, {"min_cell_count": 1, "keys": keys})


def test_no_value_has_the_title_of_the_count_that_every_report_has() -> None:
    with pytest.raises(InvalidTask, match="count already"):
        build(
            Measurement,
            {"min_cell_count": 1, "values": [{"name": "x", "low": 0, "high": 1, "title": "count"}]},
        )


def test_a_title_and_a_unit_are_written_only_where_they_say_something() -> None:
    plain = build(Value, {"name": "x", "low": 0, "high": 1})
    assert b"title" not in encode(plain)
    assert b"parts_per_unit" not in encode(plain)
    told = build(Value, {"name": "x", "low": 0, "high": 1, "title": "Größe", "parts_per_unit": 100})
    assert decode(Value, encode(told)) == told
    assert b"title" not in encode(build(Key, {"name": "x"}))
    with pytest.raises(InvalidTask):
        decode(Value, encode(plain).replace(b'"name":"x"', b'"name":"x","parts_per_unit":1'))


def test_what_people_type_becomes_a_code() -> None:
    campaign, place, language = MEASUREMENT.keys
    assert place.code("oslo") == 1
    assert language.code("3") == 3
    assert campaign.code("4294967295") == 2**32 - 1
    assert campaign.code("spring sale") == campaign.code("spring sale") != campaign.code("summer sale")
    # An accent of its own, or of the letter
    assert campaign.code("e\u0301te\u0301") == campaign.code("\u00e9t\u00e9")
    assert (place.label(1), language.label(3)) == ("oslo", "3")
    for key, typed in ((place, "rome"), (language, "4"), (campaign, "4294967296"), (language, "-1"),
                       (campaign, "9" * 5_000), (language, "0" * 5_000)):  # fmt: skip
        with pytest.raises(InvalidTask):
            key.code(typed)


def test_a_number_that_is_no_category_is_no_place_among_them() -> None:
    age = build(Key, {"name": "age", "size": 4, "categories": ["30", "31", "32", "other"]})
    assert age.code("31") == 1
    for number in ("1", "3", "17"):
        with pytest.raises(InvalidTask, match=f"key age has no category '{number}'"):
            age.code(number)


def test_columns_stand_where_reports_hold_them() -> None:
    assert MEASUREMENT.columns("count") == (0, 0)
    assert MEASUREMENT.columns("click") == (1, 0)
    assert MEASUREMENT.columns("purchase") == (2, 5)
    assert MEASUREMENT.columns("view") is None
    assert MEASUREMENT.num_columns == 8


def test_a_measured_dataset_keeps_its_rows_together() -> None:
    sealed = reports(
        OF, [example(measured=replace(HONEST, keys=(n, 0, 0), values=(1, n))) for n in range(20)]
    )
    for dataset, _ in zip(OF.datasets(sealed), (0, 1), strict=True):
        assert dataset.shares.measured is not None
        assert sorted(dataset.shares.measured.keys[:, 0].tolist()) == list(range(20))
    first, second = (dataset.shares.measured for dataset in OF.datasets(sealed))
    assert first is not None
    assert second is not None
    sums = [reconstruct(a, b) for a, b in zip(first.value_shares, second.value_shares, strict=True)]
    assert [int(row[2]) for row in sums] == first.keys[:, 0].tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_a_value_reach_two_to_the_31_and_not_that_itself(sign: int) -> None:
    most = 2**31 - 1
    low, high = sorted((0, sign * most))
    assert Value(name="paid", low=low, high=high).high == high
    with pytest.raises(ValueError, match="2147483647"):
        Value(name="paid", low=min(0, sign * 2**31), high=max(0, sign * 2**31))

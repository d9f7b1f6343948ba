"""A plan is a dictionary, and a shell shows it in lines that a person reads."""

from copy import copy

import pytest

from adserver.records.facts import Facts

PLAN = Facts(
    rounds=30,
    epsilon=0.123456789,
    note=None,
    schedule={"kind": "cosine", "gamma": None},
    alternatives=[{"batch": 64.0, "costs": {"ad_server": 1.0}}, {"batch": 128.0}],
    tensors=[["a", 2]],
    name="<b>\x1b",
)


def test_names_and_values_are_a_line_each_without_braces() -> None:
    assert repr(PLAN).splitlines() == [
        "rounds: 30",
        "epsilon: 0.123457",
        "schedule: kind cosine",
        "alternatives 1: batch 64, costs ad_server 1",
        "alternatives 2: batch 128",
        "tensors 1: a and 2",
        "name: <b>\\x1b",
    ]
    assert str(PLAN) == repr(PLAN)
    assert PLAN["note"] is None
    assert dict(PLAN) == PLAN


def test_a_time_is_shown_as_one_with_its_zone() -> None:
    assert repr(Facts(submitted_at=86_400.5, ended_at=1e20)).splitlines() == [
        "submitted_at: 1970-01-02 00:00 UTC",
        "ended_at: 9999-12-31 23:59 UTC",
    ]


def test_a_notebook_shows_the_same_as_a_table() -> None:
    assert PLAN._repr_html_().startswith("<table><tbody><tr><td>rounds</td><td>30</td></tr>")
    assert "<td>alternatives 2</td><td>batch 128</td>" in PLAN._repr_html_()
    assert "&lt;b&gt;" in PLAN._repr_html_()


def test_parts_that_do_not_fit_a_line_are_below_it_and_a_list_of_such_is_counted() -> None:
    wide = {f"figure {place}": place / 7 for place in range(9)}
    assert repr(Facts(best=wide, others=[wide, wide], left="")).splitlines() == [
        "best:",
        *(f"  figure {place}: {place / 7:.6g}" for place in range(9)),
        "others: 2, from ['others'][0] on",
    ]


def test_a_name_that_is_taken_for_an_attribute_says_how_it_is_read() -> None:
    facts = Facts({"state": "done", "rounds": 3})
    with pytest.raises(AttributeError, match=r"no attribute 'state': it is read as \['state'\]"):
        _ = facts.state
    with pytest.raises(AttributeError, match="'epsilon', nor a value of that name: state, rounds"):
        _ = facts.epsilon
    assert copy(facts) == facts

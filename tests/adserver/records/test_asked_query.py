"""Ids that clients choose: 16 bytes, and bound to everything that was asked."""

import pytest

from adserver.records.asked_query import ChosenId
from adserver.records.defaults import QUERY_ID_BYTES
from maskedlark.errors import InvalidTask

ID = "0123456789abcdef" * 2
ASKED = {"values": ["click"], "epsilon": 0.5, "where": {"place": "oslo"}}


@pytest.mark.parametrize(
    "typed",
    ["", "5a" * 15, "5a" * 17, "5a" * 15 + "g0", " " + ID[1:], "0x" + ID[2:], "\u0663" * 32],
    ids=ascii,
)
def test_what_is_no_id_is_refused(typed: str) -> None:
    with pytest.raises(InvalidTask, match="32 hexadecimal digits"):
        ChosenId.of(typed, "query", ASKED)


def test_the_same_request_is_the_same_however_its_fields_are_ordered() -> None:
    turned = dict(reversed(ASKED.items()))
    assert ChosenId.of(ID, "query", turned) == ChosenId.of(ID.upper(), "query", ASKED)


def test_any_other_request_is_another_one() -> None:
    others = [
        ChosenId.of(ID, "evaluation", ASKED),
        ChosenId.of(ID, "query", {**ASKED, "epsilon": 0.25}),
        ChosenId.of(ID, "query", {**ASKED, "dataset": "3f"}),
        ChosenId.of(ID, "query", ASKED, b""),
        ChosenId.of(ID, "query", ASKED, b"", b""),
    ]
    found = {one.request for one in (ChosenId.of(ID, "query", ASKED), *others)}
    assert len(found) == 1 + len(others)


def test_a_discovery_has_an_id_of_its_own_that_its_query_fixes() -> None:
    one, same, other = (ChosenId.of(typed, "query", {}) for typed in (ID, ID, "5a" * 16))
    assert len(one.of_discovery) == QUERY_ID_BYTES
    assert one.of_discovery == same.of_discovery
    assert len({one.of_discovery, other.of_discovery, one.query_id, other.query_id}) == 4

"""Bytes that are almost right: what fuzzing finds most with."""

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)

_ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from((0, -1, 1 << 32, 1 << 64, 10**30)), st.floats(),
    st.text(max_size=8),
    st.just([]), st.just({}), st.lists(st.integers(0, 3), max_size=3),
)  # fmt: skip


@st.composite
def almost(draw: st.DrawFn, *valid: bytes) -> bytes:
    """One of some valid encodings with up to four cuts, insertions, overwritten bytes or repeated pieces.

    Or bytes of no form at all.
    """
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    encoded = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(encoded)))
        end = min(len(encoded), place + draw(st.sampled_from((0, 1, 2, 4, 8, 64, 100_000))))
        match draw(st.integers(0, 3)):
            case 0:
                del encoded[place:end]
            case 1:
                encoded[place:place] = draw(st.binary(max_size=16))
            case 2:
                encoded[place:end] = draw(st.binary(min_size=min(end - place, 64), max_size=64))
            case _:
                encoded[place:place] = encoded[place:end]
    return bytes(encoded)


@st.composite
def almost_json(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid JSON encoding with one or two values replaced by odd ones, left out or doubled.

    The form stays canonical.

    Bytes changed at random rarely get past a parser's first line; these get to what checks the values.
    """
    root = {"": json.loads(valid)}
    for _ in range(draw(st.integers(1, 2))):
        place: Any = root
        key: Any = ""
        while (inner := place[key]) and isinstance(inner, dict | list) and draw(st.integers(0, 5)):
            place, key = (
                inner,
                draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner)))),
            )
        match draw(st.integers(0, 4)):
            case 0 if place is not root:
                del place[key]
            case 1 if isinstance(place, list):
                place.append(place[key])
            case _:
                place[key] = draw(_ODD)
    return json.dumps(root[""], sort_keys=True, separators=(",", ":")).encode()

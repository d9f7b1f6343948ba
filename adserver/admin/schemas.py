"""JSON Schemas of answers, short to write: `record(name="string", loss="number?")`.

A question mark allows null; a star a list of it. Answers may have more fields than are named: a client takes
what it knows.
"""

from collections.abc import Mapping
from typing import Any, Final

OBJECT: Final[dict[str, Any]] = {"type": "object"}


def record(**fields: "str | Mapping[str, Any]") -> dict[str, Any]:
    """Describe an object with these fields."""
    return {
        "type": "object",
        "required": list(fields),
        "properties": {name: _schema(kind) for name, kind in fields.items()},
    }


def alike(kind: str, *names: str) -> dict[str, str]:
    """Describe fields of one kind."""
    return dict.fromkeys(names, kind)


def page_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a page of a long list."""
    return record(items={"type": "array", "items": dict(item)}, next="string?")


def _schema(kind: "str | Mapping[str, Any]") -> dict[str, Any]:
    if not isinstance(kind, str):
        return dict(kind)
    if kind.endswith("*"):
        return {"type": "array", "items": _schema(kind[:-1])}
    return {"type": [kind[:-1], "null"]} if kind.endswith("?") else {"type": kind}

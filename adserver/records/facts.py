"""What JSON says of a plan or a job, as a shell and a notebook show it: a line for each name.

>>> Facts({"rounds": 30, "epsilon": 0.123456789, "note": None, "recommended": {"batch": 64}})
rounds: 30
epsilon: 0.123457
recommended: batch 64

What would be longer than a line has its parts below it; a list of such is counted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from adserver.records.html_table import html_table
from maskedlark.escape import escape
from maskedlark.utc import format_utc

_WIDTH: Final = 88


class Facts(dict[str, Any]):
    """A dictionary whose names and values are shown one a line; names without a value are not shown."""

    def __repr__(self) -> str:
        return "\n".join(f"{escape(name)}: {value}".rstrip() for name, value in self._lines())

    def __getattr__(self, name: str) -> Any:
        """Say how a value is read, to who takes what is shown for attributes."""
        hint = (
            f": it is read as [{name!r}]"
            if name in self
            else f", nor a value of that name: {', '.join(self)}"
        )
        raise AttributeError(f"there is no attribute {name!r}{hint}")

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        return html_table((), self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        return _lines(self)


def _lines(facts: Mapping[str, Any], indent: str = "") -> list[tuple[str, str]]:
    """Return names and values; parts that do not fit a line follow it, indented."""
    lines = []
    for name, value in _entries(facts):
        text = _text(value)
        if isinstance(value, Mapping) and len(text) > _WIDTH:
            lines += [(f"{indent}{name}", ""), *_lines(value, f"{indent}  ")]
        else:
            lines.append((f"{indent}{name}", text))
    return lines


def _entries(facts: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what has a value; of a list each entry by its place, from 1, or how many if they are long."""
    for name, value in facts.items():
        # Long entries would push the rest off the screen: their number and how to reach them are enough.
        if isinstance(value, list | tuple) and any(len(_text(one)) > _WIDTH for one in value):
            yield name, f"{len(value)}, from [{name!r}][0] on"
        elif isinstance(value, list | tuple):
            yield from ((f"{name} {place}", one) for place, one in enumerate(value, 1))
        elif name.endswith("_at") and isinstance(value, int | float):
            yield name, format_utc(value)
        elif value not in (None, ""):
            yield name, value


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return " and ".join(map(_text, value))
    # Names and causes come from others: a terminal would obey control characters in them.
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))

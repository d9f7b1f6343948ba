"""What JSON says of a plan or a job, as a shell and a notebook show it: a line for each name.

>>> Facts({"rounds": 30, "epsilon": 0.123456789, "note": None, "recommended": {"batch": 64}})
rounds: 30
epsilon: 0.123457
recommended: batch 64
"""

from collections.abc import Mapping
from typing import Any

from adserver.records.html_table import html_table
from maskedlark.escape import escape


class Facts(dict[str, Any]):
    """A dictionary whose names and values are shown one a line; names without a value are not shown."""

    def __repr__(self) -> str:
        return "\n".join(f"{escape(name)}: {value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        return html_table((), self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        """Return names and values; of a list each entry by its place, from 1."""
        lines = []
        for name, value in self.items():
            if isinstance(value, list | tuple):
                lines += [(f"{name} {place}", _text(one)) for place, one in enumerate(value, 1)]
            elif value is not None:
                lines.append((name, _text(value)))
        return lines


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return " and ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))

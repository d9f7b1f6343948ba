"""What one cell of a table says: nothing, a number, or a word.

The rules are few enough to be the same in any language, to the bit. Numbers are float64, read as IEEE 754
rounds decimal text (Python's `float`, JavaScript's `Number`), and from there on only compared.

>>> said(" Private "), said("N/A"), said("-"), number("1e3"), number("0x10")
('Private', None, None, 1000.0, None)
"""

import math
import re
from collections.abc import Sequence
from typing import Final

Cells = Sequence[str | None]
"""One column: each cell stripped, None where it holds no value."""

SPACE: Final = " \t\n\r\f\v"
"""What is removed from both ends of a cell."""

MISSING: Final = ("", "?", "-", "--", ".", "n/a", "#n/a", "na", "<na>", "nan", "nat", "none", "null")
"""Cells that say nothing, in lower case (ASCII): as people leave gaps, and as spreadsheets and pandas do."""

# [0-9] and not \d, which takes the digits of every script.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# Of ASCII alone: other letters change case differently by language and version of Unicode.
_TO_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_MAX_NUMBER_LENGTH: Final = 400


def said(cell: str) -> str | None:
    """Strip a cell; None if it holds no value."""
    text = cell.strip(SPACE)
    return None if text.translate(_TO_LOWER) in MISSING else text


def number(text: str) -> float | None:
    """Parse a cell as a number; None if it is not one, or not finite."""
    if len(text) > _MAX_NUMBER_LENGTH or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    # 1e999 is written as a number and read as infinity, which no bin holds.
    return value if math.isfinite(value) else None

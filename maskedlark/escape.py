r"""The one place where text that others supplied loses what a terminal or a log would obey.

>>> escape("a\x1b[2Jb\nforged: line\u202e")
'a\\x1b[2Jb\\nforged: line\\u202e'

Escape sequences, other control characters, line ends, and characters that reorder or hide text are shown as
Python's escapes. Every typed error escapes its message when it is made; logs, tables and answers of remote
servers go through here too.
"""

from collections.abc import Collection
from typing import Any, Final
from unicodedata import category

DELETE: Final = "\x7f"
"""The one control character that Python's JSON does not escape."""
SHOWN_DELETE: Final = "\\u007f"
"""How it is written in JSON."""


def escape(text: str) -> str:
    """Return the text in one line, with an escape in place of each character that cannot be seen."""
    return text if text.isprintable() else "".join(map(_escape, text))


def escape_lines(text: str) -> str:
    """Return the text with its own line ends, and everything else as `escape` gives it."""
    return "\n".join(map(escape, text.split("\n")))


def escape_values(value: Any, *, verbatim: Collection[str] = ()) -> Any:
    """Return what a JSON document holds, with strings and the names of fields escaped.

    Args:
        value: A document as `json.loads` gives it.
        verbatim: Names of fields whose strings stay as they are.
    """
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [escape_values(one, verbatim=verbatim) for one in value]
    if isinstance(value, dict):
        return {
            # Names too: a document's author chooses them as freely as its values.
            escape(name): one if name in verbatim else escape_values(one, verbatim=verbatim)
            for name, one in value.items()
        }
    return value


def _escape(character: str) -> str:
    # Python calls every space but the usual one unprintable.
    is_seen = character.isprintable() or category(character) == "Zs"
    return character if is_seen else character.encode("unicode_escape").decode()

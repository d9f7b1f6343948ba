"""Tables as a notebook and a shell show them, of names and numbers that others may have written.

>>> html_table((), [("<b>", 3)])
'<table><tbody><tr><td>&lt;b&gt;</td><td>3</td></tr></tbody></table>'
"""

from collections.abc import Iterable, Sequence
from html import escape as escape_html

from maskedlark.escape import escape


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; without a head, of rows alone. Every cell is text."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    names = "".join(f"<th>{_markup(name)}</th>" for name in head)
    top = f"<thead><tr>{names}</tr></thead>" if names else ""
    return f"<table>{top}<tbody>{body}</tbody></table>"


def html_note(text: str) -> str:
    """Return a line of text below or above a table."""
    return f"<p>{_markup(text)}</p>"


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the same as lines of text, with the columns below each other."""
    table = [list(map(_text, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def _cell(value: object) -> str:
    return f"<td>{_markup(value)}</td>"


def _markup(value: object) -> str:
    # Control characters first, then markup: either alone lets the other through.
    return escape_html(_text(value))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))

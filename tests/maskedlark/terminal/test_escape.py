"""What others named is printed as it is: it is no markup, and moves no cursor."""

from io import StringIO

import pytest
from rich.console import Console

from maskedlark.terminal.escape import plain


def printed(value: object) -> str:
    out = StringIO()
    Console(file=out, width=200).print(plain(value))
    return out.getvalue().rstrip("\n")


@pytest.mark.parametrize(
    "named", ["[/x]", "[red]hot[/red]", "[link=https://a.example]here", ":smile:", "a\\["]
)
def test_a_name_is_no_markup(named: str) -> None:
    assert printed(named) == named


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\rc", "a\\nb\\rc"),
        ("x\u202ey", "x\\u202ey"),
        ("\ud800", "\\ud800"),
        ("a\u00a0é\u3000字", "a\u00a0é\u3000字"),
    ],
    ids=range(5),
)
def test_what_is_not_seen_is_shown_as_an_escape(named: str, shown: str) -> None:
    assert printed(named) == shown
    assert printed(7) == "7"

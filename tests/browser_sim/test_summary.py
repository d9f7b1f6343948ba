"""Names in a data file reach a terminal as text, whatever they hold."""

from io import StringIO

import pytest
from rich.console import Console

from browser_sim.summary import _Description

HOSTILE = "[red]a\x1b[2J\nforged: line\u202e\x7f"


@pytest.fixture
def described() -> _Description:
    return _Description(
        source=HOSTILE, records=2, own_test=0, features=1, label_kind="classes", labels={HOSTILE: 2.0},
        default_label=None, scaling=HOSTILE, notes=(HOSTILE,), feature_names=(HOSTILE,),
    )  # fmt: skip


def test_a_table_shows_names_without_obeying_them(described: _Description) -> None:
    shown = StringIO()
    Console(file=shown, width=300, force_terminal=False).print(described.to_table())
    text = shown.getvalue()
    assert text.count(r"[red]a\x1b[2J\nforged: line\u202e\x7f") == 5
    assert all(character.isprintable() for line in text.split("\n") for character in line)


def test_json_holds_no_character_that_a_terminal_obeys(described: _Description) -> None:
    assert all(character.isprintable() for line in described.to_json().split("\n") for character in line)

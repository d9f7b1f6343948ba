"""A table in a file or a pipe is printed whole; a terminal's width is what it says."""

import pytest
from rich.table import Table

from maskedlark.terminal.whole_table import print_whole

ID = "0123456789abcdef" * 12


@pytest.mark.parametrize(("columns", "lines"), [(None, 1), ("60", 4)])
def test_only_a_width_that_somebody_set_breaks_lines(
    columns: str | None, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    table = Table(box=None, show_header=False)
    table.add_column(overflow="fold")
    table.add_row(ID)
    print_whole(table)
    shown = capsys.readouterr().out
    assert shown.count("\n") == lines
    assert "".join(shown.split()) == ID


def test_no_line_is_padded_to_the_longest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(box=None, show_header=False)
    table.add_row("id", ID)
    table.add_row("name", "shop")
    print_whole(table)
    _, short, _ = capsys.readouterr().out.split("\n")
    assert short.split() == ["name", "shop"]
    assert short == short.rstrip()

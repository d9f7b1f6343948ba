"""Each figure of the page of benchmarks is a row that its command can write."""

import re
from pathlib import Path

import pytest

from tests.bench.benchmarks import FIGURES, PAGE, ROOT, row, with_rows

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("command", FIGURES)
def test_the_page_has_a_row_for_each_figure_of_a_command(command: str) -> None:
    lines = PAGE.read_text().splitlines()
    for what in FIGURES[command]:
        found = [line for line in lines if line.startswith(f"| {what} | ")]
        assert len(found) == 1, what
        assert found[0].endswith(f" | `{command}` |")


def test_every_row_that_names_a_measuring_command_is_a_figure() -> None:
    shown = set(re.findall(r"^\| (.*?) \| .* \| `((?:make|python) .*)` \|$", PAGE.read_text(), re.MULTILINE))
    under_faults = {(what, command) for what, command in shown if re.search("same-round|chaos", command)}
    assert shown - under_faults == {(what, command) for command, rows in FIGURES.items() for what in rows}


@pytest.mark.parametrize("command", FIGURES)
def test_a_command_exists_and_knows_the_keys_that_its_rows_show(command: str) -> None:
    recipe = (ROOT / "Makefile").read_text()
    target = re.match(r"make (\S+)", command)
    runs = recipe.partition(f"\n{target[1]}: ")[2].partition("\n\n")[0] if target else command
    modules = re.findall(r"tests\.bench\.(\w+)", runs)
    assert modules, f"{command} runs no benchmark"
    source = (FOLDER / f"{modules[0]}.py").read_text()
    sources = source + "".join(
        (FOLDER / f"{name}.py").read_text() for name in re.findall(r"from tests\.bench\.(\w+) import", source)
    )
    for cells in FIGURES[command].values():
        for key in re.findall(r"[{\[]([A-Za-z]\w*)", cells) if isinstance(cells, str) else ():
            assert re.search(rf"\b{key}\b", sources) or "{what}_" in source, key


def test_a_row_is_replaced_and_nothing_else_of_the_page_is() -> None:
    line = row("a figure", "{a[b]:.1f} s", "make x", {"a": {"b": 1.25}}, "2026-11-24, load 1")
    assert line == "| a figure | 1.2 s | 2026-11-24, load 1 | `make x` |"
    page = "# Page\n\n| a figure | 3 s | before | `make x` |\n| another | 4 | before | `make y` |\n"
    assert with_rows(page, {"a figure": line}) == page.replace("| a figure | 3 s | before | `make x` |", line)
    with pytest.raises(KeyError):
        with_rows(page, {"none": line})

"""Each deviation from the paper names the test that holds it; here is the test that those tests exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/explanation/deviations.md").read_text().splitlines()
    if line.startswith("| ") and not line.endswith("| Test |")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_there_is_a_row_for_each_deviation_of_the_design() -> None:
    assert len(ROWS) >= 13


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_deviation_names_a_test_that_exists(row: str) -> None:
    named = TEST.findall(row)
    assert named, "a row names no test"
    for path, name in named:
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{path} has no {name}"


def test_links_between_the_explanations_lead_somewhere() -> None:
    for page in (ROOT / "docs/explanation").glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

"""The ways on docs/explanation/architecture.md are functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)(?::([A-Za-z_.]+))?`", PAGE)))


def has(tree: ast.AST, names: list[str]) -> bool:
    """Whether a function or class is defined under these names, each inside the one before."""
    inside = [node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == names[0]]
    return bool(inside) and (len(names) == 1 or has(inside[0], names[1:]))


def test_the_page_names_many_functions() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_function_on_the_page_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert not name or has(tree, name.split(".")), f"{path} has no {name}"


@pytest.mark.parametrize("party", ["adserver", "helper", "maskedlark"])
def test_every_room_is_on_the_page(party: str) -> None:
    table = PAGE[PAGE.index(f"| `{party}/` |") :].split("\n\n")[0]
    rooms = {path.parent.name for path in (ROOT / party).glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`(\w+)/`", table))

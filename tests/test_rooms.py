"""Each room's `__init__` says what the room may import; the contracts in pyproject.toml are what holds it."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
LAYERS: dict[str, list[list[str]]] = {
    container: [layer.split(" | ") for layer in contract["layers"]]
    for contract in CONTRACTS
    if contract["type"] == "layers"
    for container in contract.get("containers", ())
}
ROOMS = [
    (house, room)
    for house, layers in LAYERS.items()
    for layer in layers
    for room in layer
    if (ROOT / house.replace(".", "/") / room / "__init__.py").exists()
]


def said(house: str, room: str) -> set[str]:
    """The rooms that a room's docstring names after `May import:`."""
    path = ROOT / house.replace(".", "/") / room / "__init__.py"
    found = re.search(
        r"May import: ([^.]*)\.", " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    )
    assert found, f"{path.relative_to(ROOT)} does not say what its room may import"
    return set(re.findall(r"\w+", found[1])) & {name for layer in LAYERS[house] for name in layer}


@pytest.mark.parametrize(("house", "room"), ROOMS)
def test_a_rooms_init_names_the_layers_below_it(house: str, room: str) -> None:
    depth = next(index for index, layer in enumerate(LAYERS[house]) if room in layer)
    assert said(house, room) == {name for layer in LAYERS[house][depth + 1 :] for name in layer}


@pytest.mark.parametrize("house", LAYERS)
def test_every_room_of_a_house_is_in_its_contract(house: str) -> None:
    folder = ROOT / house.replace(".", "/")
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert rooms <= {name for layer in LAYERS[house] for name in layer}


def test_every_party_with_rooms_has_a_contract() -> None:
    assert {"maskedlark", "helper", "adserver"} <= LAYERS.keys()

"""What a program that was written from docs/spec alone draws is what the vectors of 1.0 hold."""

import json
from struct import iter_unpack
from typing import Any, Final

import pytest

from tests.spec import draws
from tests.vectors.frozen import FOLDER

KNOWN: Final[dict[str, Any]] = json.loads((FOLDER / "1.0" / "protocol.json").read_text())
FORCED: Final = json.loads((FOLDER / "browser" / "vectors.json").read_text())["laplace"]


def pair_of(task: str, role: int) -> bytes:
    own, other = KNOWN["helpers"][role], KNOWN["helpers"][1 - role]
    task_id = bytes.fromhex(KNOWN["tasks"][task]["task_id"])
    return draws.pair_key(bytes.fromhex(own["agreement"]), bytes.fromhex(other["agreement_key"]), task_id)


def task_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KNOWN["tasks"][name]["bundle"])["task"]
    return found


@pytest.mark.parametrize("task", KNOWN["tasks"])
@pytest.mark.parametrize("role", [0, 1])
def test_the_pair_key(task: str, role: int) -> None:
    assert pair_of(task, role).hex() == KNOWN["tasks"][task]["pair_key"]


@pytest.mark.parametrize("told", KNOWN["rounds"], ids=lambda told: str(told["transcript"][:8]))
def test_rounds(told: dict[str, Any]) -> None:
    pair, task, job = pair_of("labels", 1), task_of("labels"), told["spec"].encode()
    sent, numerics = bytes.fromhex(told["sent"]), bytes.fromhex(told["numerics_digest"])
    script = draws.transcript(job, told["round_index"], sent, numerics)
    assert script.hex() == told["transcript"]
    sampled = draws.sample(pair, job, told["round_index"], script, told["records"])
    assert sampled == told["sampled"]
    assert draws.work(task, job, told["records"]) == told["work"]
    assert draws.added(pair, script, sampled, told["records"], told["work"]) == told["added"]
    blinds = b"".join(one.to_bytes(8, "little") for one in draws.blind(pair, script, 5))
    assert blinds.hex() == told["blind"]
    tag = draws.agreement_tag(pair, script, bytes.fromhex(told["values_digest"]))
    assert tag.hex() == told["agreement_tag"]


@pytest.mark.parametrize("told", KNOWN["noise"], ids=lambda told: f"{told['mechanism']} {told['scale']}")
def test_noise(told: dict[str, Any]) -> None:
    source = draws.words(bytes.fromhex(told["key"]), 8)
    drawn = draws.Draws(told["mechanism"], told["scale"]).draw(len(told["numbers"]), source)
    assert [str(one) for one in drawn] == told["numbers"]


@pytest.mark.parametrize("told", FORCED, ids=lambda told: f"scale {told['scale']}")
def test_noise_whose_first_proposals_are_the_hardest(told: dict[str, Any]) -> None:
    source = (word for (word,) in iter_unpack("<Q", bytes.fromhex(told["stream"])))
    drawn = draws.Draws("laplace", told["scale"]).draw(len(told["values"]), source)
    assert drawn == told["values"]


def test_the_cells_that_a_query_shows() -> None:
    [told] = [one for one in KNOWN["queries"] if "cells" in one]
    found = draws.cells_to_show(
        task_of(told["task"]),
        told["spec"].encode(),
        pair_of(told["task"], 0),
        told["keys"],
        bytes.fromhex(told["beside"]),
    )
    assert found == told["cells"]

"""A program that was written from docs/spec alone draws and answers what the vectors of 1.0 hold."""

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


def opened_of(task: str, role: int) -> dict[str, draws.Opened]:
    """What a helper opened of a task's reports, in canonical order."""
    told = sorted(
        (one for one in KNOWN["reports"] if one["task"] == task), key=lambda one: str(one["report_id"])
    )
    return {
        one["report_id"]: draws.Opened(task_of(task), bytes.fromhex(one["plaintexts"][role])) for one in told
    }


@pytest.mark.parametrize("task", ["labels", "measured"])
@pytest.mark.parametrize("role", [0, 1])
def test_view_tags_and_the_id_of_a_dataset(task: str, role: int) -> None:
    pair, task_id = pair_of(task, role), bytes.fromhex(KNOWN["tasks"][task]["task_id"])
    tags = {
        bytes.fromhex(name): draws.view_tag(pair, bytes.fromhex(name), one.view)
        for name, one in opened_of(task, role).items()
    }
    for one in KNOWN["reports"]:
        if one["task"] == task:
            assert tags[bytes.fromhex(one["report_id"])].hex() == one["view_tags"][role]
    [told] = [one for one in KNOWN["datasets"] if one["task"] == task]
    assert draws.dataset_id(task_id, tags).hex() == told["dataset_id"]


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize(
    "told", [one for one in KNOWN["queries"] if "answers" in one], ids=lambda told: str(told["kind"])
)
def test_answers_of_queries(told: dict[str, Any], role: int) -> None:
    task, pair, spec = task_of(told["task"]), pair_of(told["task"], role), told["spec"].encode()
    opened = list(opened_of(told["task"], role).values())
    if told["kind"] == "query":
        beside = bytes.fromhex(told["beside"])
        made = draws.answer_query(task, spec, pair, role, opened=opened, beside=beside)
    elif told["kind"] == "discovery":
        made = draws.answer_discovery(task, spec, pair, role, opened)
    else:
        made = draws.answer_evaluation(spec, pair, role, opened, told["bins"])
    assert made.hex() == told["answers"][role]

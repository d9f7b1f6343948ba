"""Today's code does what the specification's tables and formulas say."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from helper.gradient.exact.self_check import NUMERICS_DIGEST
from maskedlark.errors import JobReason, ReportReason
from maskedlark.numbers.field import MODULUS
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import FOUND_INSIDE
from maskedlark.reports.sealing import OpeningKey, share_info
from maskedlark.reports.task import Task
from maskedlark.reports.updates import update_info
from protos import report_pb2
from tests.builders import world
from tests.spec.field_tables import HEAD, OBJECTS, table
from tests.vectors.protocol.generate import TASKS

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {page.name: page.read_text() for page in (ROOT / "docs" / "spec").glob("*.md")}
ALL: Final = "\n".join(PAGES.values())
SUITES: Final = "| `suite` | KEM | AEAD | public key, bytes | `enc`, bytes | sealed less plaintext, bytes |"
_OBJECT: Final = re.compile(rf"^### (\w+)\n\n({re.escape(HEAD)}\n(?:\|.*\n?)+)", re.MULTILINE)
_PURPOSE: Final = re.compile(r"\b(?:digest|digest_in_slices)\(\s*\"([a-z ]+)\"")
_KEY: Final = re.compile(r"derive_key\([\w.]+, b\"([a-z ]+)\"")
_ELSEWHERE: Final = {"report as sent"}
"""Digests that one party makes and compares."""


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table with this head."""
    after = PAGES[page].split(f"\n{head}\n", 1)[1].splitlines()[1:]
    found = []
    for line in after:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def test_every_object_has_one_table_which_is_that_of_the_code() -> None:
    found = _OBJECT.findall(ALL)
    assert sorted(name for name, _ in found) == sorted(OBJECTS)
    for name, shown in found:
        assert shown.strip() == table(OBJECTS[name]), f"python -m tests.spec.field_tables {name}"


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("role", [0, 1])
def test_plaintexts_have_the_lengths_of_the_layout_tables(name: str, role: int) -> None:
    task = world(**TASKS[name]).task
    assert _plaintext_length(task, role) == task.plaintext_length(role)


def _plaintext_length(task: Task, role: int) -> int:
    measurement, shape = task.measurement, task.proof_shape
    known = {
        "d": task.num_features,
        "L": task.num_candidates,
        "M": len(measurement.keys) if measurement else 0,
        "W": measurement.num_columns if measurement else 0,
    }
    view, *shares = _tables_of_bytes("reports.md")
    if task.updates is not None:
        known["a coordinate"] = task.updates.length
        return _add(_tables_of_bytes("updates.md")[0], known, role)
    if shape is None:
        return _add(view, known, role) + _add(shares[0], known, role)
    known |= {"V": len(shape.vectors), "P": len(shape.polynomials), "an element": shape.num_elements}
    return _add(view, known, role) + _add(_tables_of_bytes("proofs.md")[0], known, role)


def _tables_of_bytes(page: str) -> list[list[str]]:
    """The right column of each table with the head `Part | Bytes`."""
    found = []
    for part in PAGES[page].split("\n| Part | Bytes |\n|---|---|\n")[1:]:
        lines = part.split("\n\n", 1)[0].splitlines()
        found.append([line.rsplit("|", 2)[1].strip() for line in lines])
    return found


def _add(cells: list[str], known: dict[str, int], role: int) -> int:
    total = 0
    for cell in cells:
        one = cell.split(", or ")[role] if ", or " in cell else cell
        for name, value in sorted(known.items(), key=lambda item: -len(item[0])):
            one = re.sub(rf"\b{name}\b", str(value), one)
        left, _, right = one.partition(" ")
        total += int(left) * (sum(map(int, re.findall(r"\d+", right))) if right else 1)
    return total


def test_what_a_share_is_bound_to_has_the_bytes_of_its_table() -> None:
    bound: dict[str, Any] = {"report_id": bytes(16), "time_bucket": 0, "role": 0, "key_id": 0}
    labels, update = (sum(int(cell) for cell in cells) for cells in _tables_of_bytes("sealing.md"))
    assert labels == len(share_info(task_id=bytes(32), **bound))
    assert update == len(update_info(task_id=bytes(32), round_id=bytes(32), **bound))
    assert f"({labels} bytes)" in PAGES["sealing.md"]
    assert f"{update} bytes" in PAGES["sealing.md"]


def test_the_suites_are_those_of_the_code() -> None:
    found = {
        cells[0].strip("`"): tuple(map(int, cells[3:]))
        for cells in rows(
            "sealing.md",
            "| `suite` | KEM | AEAD | public key, bytes | `enc`, bytes | sealed less plaintext, bytes |",
        )
    }
    expected = {}
    for suite in HpkeSuite:
        key = len(OpeningKey.generate(key_id=0, suite=suite).public().public_key)
        overhead = suite.overhead
        expected[suite.value] = (key, overhead - 16, overhead)
    assert found == expected


def test_a_helper_drops_reports_for_the_reasons_of_the_table() -> None:
    named = [cells[0].strip("`") for cells in rows("datasets.md", "| Reason | When |")]
    of_others = {"wrong_task", "not_proven", "implausible"} | {"unknown_round", "round_over", "round_changed"}
    of_others |= {"cap_reached"}
    assert set(named) == {reason.value for reason in ReportReason} - of_others
    inside = named[named.index("wrong_version") : named.index("mask_not_canonical") + 1]
    assert sorted(inside) == sorted(reason.value for reason in FOUND_INSIDE)


def test_the_messages_of_an_upload_are_those_of_the_wire() -> None:
    found: dict[str, dict[str, int]] = {}
    name = ""
    for cells in rows("reports.md", "| Message | Field | Number | Type |"):
        name = cells[0].strip("`") or name
        found.setdefault(name, {})[cells[1].strip("`")] = int(cells[2])
    messages: list[Any] = [
        report_pb2.Report.DESCRIPTOR,
        report_pb2.SealedShare.DESCRIPTOR,
        report_pb2.ReportBatch.DESCRIPTOR,
    ]
    assert found == {one.name: {field.name: field.number for field in one.fields} for one in messages}


def test_every_digest_and_key_that_two_parties_compare_is_specified() -> None:
    rooms = [ROOT / "maskedlark" / room for room in ("reports", "releases", "encoding")]
    code = "\n".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    for purpose in set(_PURPOSE.findall(code)) - _ELSEWHERE:
        assert f'"{purpose}"' in ALL, purpose
    pair = (ROOT / "maskedlark" / "reports" / "helper_pair_key.py").read_text()
    for purpose in _KEY.findall(pair):
        assert f'"{purpose}"' in PAGES["rounds.md"], purpose


def test_reasons_that_the_pages_name_exist() -> None:
    known = {reason.value for kind in (ReportReason, JobReason) for reason in kind}
    named = set(re.findall(r"\(`([a-z_]+)`\)", ALL))
    assert named
    assert named <= known


def test_constants_are_those_of_the_code() -> None:
    assert str(MODULUS) in PAGES["index.md"]
    assert NUMERICS_DIGEST.hex() in PAGES["numerics.md"]

"""The tool itself, on a toy package: one mutant is killed, one survives, one is judged equivalent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.equivalents import FILE, Equivalents, as_entry
from tests.mutants.line_map import _Moved
from tests.mutants.mutations import WEIGHTS, Mutant, mutants_of
from tests.mutants.run import all_mutants

ROOT = Path(__file__).parents[2]
TOY = b"""
def least(values: list[int], most: int) -> int:
    found = most
    for value in values:
        if value < found:
            found = value
    return found


def is_full(count: int) -> bool:
    return count >= 3
"""
CHECKS = """
from toy.sums import is_full, least


def test_least() -> None:
    assert least([3, 1, 2], 9) == 1


def test_full() -> None:
    assert is_full(4)
    assert not is_full(2)
"""
EVERY_KIND = b"""
from contextlib import suppress
_MOST = 3


class Shelf:
    def put(self, key: str, value: int) -> None:
        if not key and value:
            raise KeyError(key)
        with self._lock:
            self._kept[key] = min(value, _MOST) - 1
        with suppress(OSError):
            self._log(key, value)

    def is_here(self, key: str) -> bool:
        return key in self._kept

    def all(self) -> list[int]:
        return [self._kept[one] for one in range(4)]
"""


def changes(source: bytes, kind: str) -> list[str]:
    return [one.change for one in mutants_of("toy/sums.py", source) if one.kind == kind]


@pytest.mark.parametrize("kind", WEIGHTS)
def test_every_kind_of_change_is_found(kind: str) -> None:
    assert changes(EVERY_KIND, kind)


def test_each_mutant_changes_its_place_and_nothing_else() -> None:
    for one in mutants_of("toy/sums.py", EVERY_KIND):
        changed = one.applied(EVERY_KIND)
        assert changed.startswith(EVERY_KIND[: one.start])
        assert changed.endswith(EVERY_KIND[one.end :])
        assert changed != EVERY_KIND


def test_a_lock_is_told_from_other_blocks() -> None:
    assert [one.split(" ")[0] for one in changes(EVERY_KIND, "lock")] == ["self._lock"]
    assert [one.split(" ")[0] for one in changes(EVERY_KIND, "block")] == ["suppress(OSError)"]


@pytest.mark.parametrize(
    "source",
    [
        b'"""Only words."""',
        b"_LOG.info('kept %d', 1)",
        b"def f(one: int | None) -> str:\n    return f'{one + 1}'",
        b"Name = dict[str, int] | None",
    ],
)
def test_words_logs_and_types_are_left_alone(source: bytes) -> None:
    assert not [one for one in mutants_of("toy/sums.py", source) if one.kind != "result"]


def test_lines_are_found_again_where_a_change_has_moved_them() -> None:
    moved = _Moved.between("one\ntwo\nthree\nfour\n", "new\none\nTWO\nand more\nfour\n")

    def now(line: int) -> list[int]:
        bits = moved.applied(1 << line)
        return [place for place in range(bits.bit_length()) if bits >> place & 1]

    assert (now(1), now(2), now(3), now(4)) == ([2], [3, 4], [3, 4], [5])


def test_every_judged_mutant_is_one_that_may_still_be_drawn() -> None:
    judged = Equivalents(FILE)
    there = [file for file in sorted(judged.files) if (ROOT / file).exists()]
    assert judged.outdated(all_mutants(ROOT, there)) == []


def the(change: str) -> Mutant:
    return next(one for one in mutants_of("toy/sums.py", TOY) if one.change == change)


def test_one_is_killed_one_survives_and_one_is_equivalent(tmp_path: Path) -> None:
    for name, content in (("toy/sums.py", TOY.decode()), ("checks/test_sums.py", CHECKS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['slow', 'page', 'long']\n"
    )
    equivalent, survivor = the("value < found -> (value <= found)"), the("count >= 3 -> (count > 3)")
    entry = as_entry(equivalent).replace('reason = ""', 'reason = "of equals it takes one or the other"')
    (tmp_path / "equivalent.toml").write_text(entry)
    options = ["--root", str(tmp_path), "--rooms", "toy", "--tests", "checks", "--jobs", "1", "--json"]
    command = [
        sys.executable,
        "-m",
        "tests.mutants",
        *options,
        "--equivalent",
        str(tmp_path / "equivalent.toml"),
    ]
    figures: dict[str, Any] = {}
    for line in (equivalent.line, survivor.line):
        run = subprocess.run(
            [*command, "--at", f"toy/sums.py:{line}"],
            cwd=ROOT,
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        figures[str(line)] = json.loads(run.stdout.splitlines()[-1])
    first, second = figures.values()
    assert first["equivalent"] == 1
    assert first["killed"] == first["mutants"] - 1
    assert [one["change"] for one in second["survivors"]] == [survivor.change, "3 -> 4"]
    assert second["killed"] == second["mutants"] - 2
    assert "-    return count >= 3" in run.stderr
    assert (tmp_path / "toy/sums.py").read_bytes() == TOY

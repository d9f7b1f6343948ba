"""The compiled loops as machine code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helper.gradient.exact.kernels import compiled

ROOT = Path(__file__).resolve().parents[4]

WARM_UP = [sys.executable, "-c", "from helper.serving.warmup import warm_up; warm_up()"]
PROGRAM = """
import importlib, pkgutil
from numba.core.registry import CPUDispatcher
import helper.gradient.exact as package
from helper.gradient.exact.kernels.compiled import _Kept
from helper.serving.warmup import warm_up

warm_up()
loops = 0
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    for name, loop in vars(importlib.import_module(module.name)).items():
        if isinstance(loop, CPUDispatcher):
            codes = loop.inspect_asm()
            assert codes or not isinstance(loop._cache, _Kept), f"{name} is left to the first round"
            for code in codes.values():
                loops += 1
                assert not any(word in code for word in ("fmadd", "fmsub", "fnma", "fmla")), name
print(loops)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder of compiled loops, made once from nothing, and how many loops were looked at meanwhile."""
    folder = tmp_path_factory.mktemp("loops")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return folder, int(answer.stdout)


@pytest.mark.slow
def test_no_compiled_loop_fuses_a_product_with_a_sum_and_the_self_check_compiles_them_all(
    made: tuple[Path, int],
) -> None:
    kernels = sum(
        path.read_text().count("\n@kernel\n")
        for path in (ROOT / "helper" / "gradient" / "exact").rglob("*.py")
    )
    assert made[1] >= kernels > 20


@pytest.mark.slow
def test_compiled_loops_are_found_again_at_another_path_and_not_written_anew(
    made: tuple[Path, int], tmp_path: Path
) -> None:
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    shutil.copytree(made[0], moved)
    compiled = sorted(moved.rglob("*.nbc"))
    for package in ("helper", "maskedlark"):
        shutil.copytree(ROOT / package, elsewhere / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path: path.stat().st_mtime_ns for path in compiled}
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(moved), "PYTHONPATH": str(elsewhere)}
    subprocess.run(WARM_UP, check=True, cwd=elsewhere, env=environment)
    assert len(compiled) > 20
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*.nbc")} == before


ONE_LOOP = """
import numpy as np
from helper.gradient.exact.kernels.compiled import cache_folder
from helper.datasets.proofs import _row_sums
sums = np.empty(1, np.uint64)
_row_sums(np.ones((1, 3), np.uint64), sums)
print(sums[0], cache_folder().exists())
"""


def test_a_loop_is_compiled_and_used_where_nothing_can_be_written(tmp_path: Path) -> None:
    """As root may write everywhere, the folder's place is taken by a file."""
    (tmp_path / "file").touch()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "file")}
    answer = subprocess.run(
        [sys.executable, "-c", ONE_LOOP],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert answer.stdout == "3 False\n"


def test_loops_that_an_installation_brings_are_used_if_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "complete", lambda folder: ROOT / "README.md")
    assert compiled._cache_folder.__wrapped__("").parent == ROOT / "helper" / "gradient" / "exact" / "loops"
    assert compiled._cache_folder.__wrapped__("/given").parent == Path("/given")
    monkeypatch.setattr(compiled, "complete", lambda folder: folder / "absent")
    assert compiled._cache_folder.__wrapped__("").parent.name != "loops"

"""The compiled loops as machine code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import importlib, pkgutil
from numba.core.registry import CPUDispatcher
import helper.gradient.exact as package
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.exact.self_check import golden_digest, self_check

self_check()
golden_digest(Int8Backend(base_bits=7))
loops = 0
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    for name, loop in vars(importlib.import_module(module.name)).items():
        if isinstance(loop, CPUDispatcher):
            for code in loop.inspect_asm().values():
                loops += 1
                assert not any(word in code for word in ("fmadd", "fmsub", "fnma", "fmla")), name
print(loops)
"""


@pytest.mark.slow
def test_no_compiled_loop_fuses_a_product_with_a_sum_and_the_self_check_compiles_them_all(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    kernels = sum(
        path.read_text().count("\n@kernel\n")
        for path in (ROOT / "helper" / "gradient" / "exact").rglob("*.py")
    )
    assert int(answer.stdout) >= kernels > 20


@pytest.mark.slow
def test_compiled_loops_are_found_again_at_another_path_and_not_written_anew(
    tmp_path: Path,
) -> None:
    made, moved, elsewhere = tmp_path / "made", tmp_path / "moved", tmp_path / "elsewhere"
    command = [sys.executable, "-c", "from helper.serving.warmup import warm_up; warm_up()"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NUMBA_CACHE_DIR": str(made)})
    made.rename(moved)
    compiled = sorted(moved.rglob("*.nbc"))
    for package in ("helper", "maskedlark"):
        shutil.copytree(ROOT / package, elsewhere / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path: path.stat().st_mtime_ns for path in compiled}
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(moved), "PYTHONPATH": str(elsewhere)}
    subprocess.run(command, check=True, cwd=elsewhere, env=environment)
    assert len(compiled) > 20
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*.nbc")} == before

"""The compiled loops as machine code."""

import os
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

"""The compiled loops as machine code."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config

from helper.gradient.exact.kernels import compiled
from helper.gradient.exact.layers.embedding import _gather_equal

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


ON_X86 = pytest.mark.skipif(not compiled.runnable(), reason="kinds of processors are told apart on x86")


def answer(program: str, environment: Mapping[str, str], folder: Path = ROOT) -> str:
    """What a program says, in a process of its own with these variables."""
    return subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    ).stdout


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind.environment, id=kind.name, marks=[pytest.mark.long] if place else [])
        for place, kind in enumerate(compiled.runnable())
    ]
    or [pytest.param({}, id="this processor")],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder of compiled loops, made once from nothing, and how many loops were looked at meanwhile."""
    folder = tmp_path_factory.mktemp("loops")
    return folder, int(answer(PROGRAM, {**request.param, "NUMBA_CACHE_DIR": str(folder)}))


ADDS = """
import numpy as np
from helper.gradient.exact.kernels.field import add_to, add_transposed
vector = np.arange(4, dtype=np.uint64)
add_to(vector, vector.copy())
"""


@pytest.mark.slow
def test_a_compiled_loop_has_the_same_bytes_wherever_its_source_is(tmp_path: Path) -> None:
    """A wheel brings these files: they name neither the builder's folders nor addresses in its memory."""
    made = {}
    for name, seed in ("here", "1"), ("there/and deeper", "7"):
        for package in ("helper", "maskedlark", "protos"):
            shutil.copytree(ROOT / package, tmp_path / name / package)
        cached = tmp_path / f"cache of {seed}"
        environment = {
            "PYTHONPATH": str(tmp_path / name),
            "PYTHONHASHSEED": seed,
            "NUMBA_CACHE_DIR": str(cached),
        }
        where = answer(f"{ADDS}\nimport helper\nprint(helper.__file__)", environment, tmp_path / name)
        assert Path(where.strip()).is_relative_to(tmp_path / name)
        made[name] = {
            path.relative_to(cached): path.read_bytes() for path in cached.rglob("*") if path.is_file()
        }
    first, second = made.values()
    assert {path.suffix for path in first} == {".nbc", ".nbi"}
    assert first == second
    assert not any(b"tmp" in content or b" at 0x" in content for content in first.values())


COMPILES_ALL = pytest.mark.timeout(1_800)
"""25 s of an idle processor, in the first test that asks; the longest tests try other kinds of loops."""


@pytest.mark.slow
@COMPILES_ALL
def test_no_compiled_loop_fuses_a_product_with_a_sum_and_the_self_check_compiles_them_all(
    made: tuple[Path, int],
) -> None:
    kernels = sum(
        path.read_text().count("\n@kernel\n")
        for path in (ROOT / "helper" / "gradient" / "exact").rglob("*.py")
    )
    assert made[1] >= kernels > 20


@pytest.mark.slow
@COMPILES_ALL
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
    assert answer(ONE_LOOP, {"NUMBA_CACHE_DIR": str(tmp_path / "file")}) == "3 False\n"


PLANTED = """
import pickle
from pathlib import Path
class Planted:
    def __reduce__(self):
        return Path.touch, (Path({ran!r}),)
for index in Path({folder!r}).rglob("*.nbi"):
    content = index.read_bytes()
    version = pickle.dumps(pickle.loads(content))
    index.write_bytes(version + pickle.dumps(Planted()))
"""


@pytest.mark.parametrize(
    ("where", "mode"),
    [("exact-*", 0o777), ("exact-*/*.nbi", 0o666), (".", 0o777)],
    ids=["all", "a file", "around"],
)
def test_what_others_may_plant_among_compiled_loops_is_not_run(tmp_path: Path, where: str, mode: int) -> None:
    """Numba unpickles what it finds there: it would run as the helper, beside its keys."""
    folder, ran = tmp_path / "loops", tmp_path / "ran"
    environment = {"NUMBA_CACHE_DIR": str(folder)}
    assert answer(ONE_LOOP, environment) == "3 True\n"
    assert answer(ONE_LOOP, environment) == "3 True\n"
    answer(PLANTED.format(folder=str(folder), ran=str(ran)), {})
    for opened in [folder] if where == "." else folder.glob(where):
        opened.chmod(mode)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        answer(ONE_LOOP, environment)
    assert "loaded as code" in refused.value.stderr
    assert not ran.exists()
    for opened in [folder] if where == "." else folder.glob(where):
        opened.chmod(0o755)
    with suppress(subprocess.CalledProcessError):
        answer(ONE_LOOP, environment)
    assert ran.exists()  # the owner's own plant runs, so this attack is one


LOOKED_UP = """
from helper.datasets.proofs import _row_sums
_row_sums.compile("void(uint64[:, ::1], uint64[::1])")
(code,) = _row_sums.inspect_asm().values()
print(*_row_sums.targetctx.codegen().magic_tuple()[1:], "zmm" in code or "{%k" in code)
"""


@ON_X86
@pytest.mark.parametrize("kind", compiled.KINDS, ids=lambda kind: kind.name)
def test_what_is_compiled_for_a_kind_of_processor_says_nothing_of_the_one_that_did_it(
    kind: compiled.ProcessorKind, tmp_path: Path
) -> None:
    """Its code has no instruction of another kind, and is looked up by the kind alone. It is not run."""
    found = answer(LOOKED_UP, {**kind.environment, "NUMBA_CACHE_DIR": str(tmp_path)})
    assert found == f"x86-64-v3 {kind.features} {kind.name == 'avx512'}\n"


def test_a_process_compiles_for_the_fastest_kind_whose_loops_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = compiled.KINDS
    monkeypatch.setattr(compiled, "runnable", lambda: compiled.KINDS)
    monkeypatch.setattr(compiled, "cache_folder", lambda: tmp_path)

    def used() -> str:
        monkeypatch.setattr(config, "CPU_NAME", None)
        monkeypatch.setattr(config, "CPU_FEATURES", None)
        compiled._use_kind.__wrapped__()
        return compiled.processor_kind()

    assert used() == fast.name  # nothing is there
    compiled.complete(tmp_path).touch()
    assert used() == fast.name
    compiled.complete(tmp_path).unlink()
    compiled._complete(tmp_path, slow.name).touch()
    assert used() == slow.name
    compiled._complete(tmp_path, fast.name).touch()
    assert used() == fast.name
    monkeypatch.setattr(config, "CPU_NAME", "generic")
    monkeypatch.setattr(config, "CPU_FEATURES", "")
    compiled._use_kind.__wrapped__()  # an operator's choice stays
    assert compiled.processor_kind() not in {fast.name, slow.name}


@pytest.mark.parametrize(
    ("missing", "runs"), [("sha", ["avx512", "avx2"]), ("avx512dq", ["avx2"]), ("fma", []), ("avx2", [])]
)
def test_a_processor_runs_the_kinds_all_of_whose_instructions_it_has(
    missing: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    has = dict.fromkeys((*compiled._OF_BASELINE, *compiled.KINDS[0].needs), True)
    monkeypatch.setattr(compiled, "get_host_cpu_features", lambda: {**has, missing: False})
    assert [kind.name for kind in compiled.runnable()] == runs
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert compiled.runnable() == ()


def test_loops_that_an_installation_brings_are_used_if_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "runnable", lambda: compiled.KINDS)
    monkeypatch.setattr(compiled, "_complete", lambda *_: ROOT / "README.md")
    assert compiled._cache_folder.__wrapped__("").parent == ROOT / "helper" / "gradient" / "exact" / "loops"
    assert compiled._cache_folder.__wrapped__("/given").parent == Path("/given")
    monkeypatch.setattr(compiled, "_complete", lambda folder, _: folder / "absent")
    assert compiled._cache_folder.__wrapped__("").parent.name != "loops"


def test_the_highest_index_of_a_byte_has_a_first_place_too() -> None:
    """In Python, where an index past the end is an error and not a write into other memory."""
    deltas = np.arange(1.0, 5.0).reshape(1, 2, 2)
    indices = np.array([[255, 255], [0, 255]], np.uint8)
    gathered, first = np.zeros_like(deltas), np.zeros(256, indices.dtype)
    in_python: Any = _gather_equal
    in_python.py_func(deltas, indices, first, gathered)
    assert gathered.tolist() == [[[3.0, 0.0], [3.0, 4.0]]]

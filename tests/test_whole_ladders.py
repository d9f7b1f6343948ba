"""A new member of an enum that values are computed by is a type error wherever it is not yet handled."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
LADDERS: Final[dict[str, tuple[str, ...]]] = {
    "maskedlark/model/losses.py:Loss": (
        "maskedlark/model/losses.py",
        "helper/gradient/exact/layers/losses.py",
        "maskedlark/autodiff/output_gradients.py",
        "adserver/training/inference.py",
        "adserver/training/eval_set.py",
        "adserver/training/linear_model.py",
        "adserver/training/rehearsal.py",
        "adserver/training/scoring.py",
        "adserver/training/trained_weights.py",
    ),
    "maskedlark/privacy/mechanism.py:Mechanism": (
        "maskedlark/privacy/noise.py",
        "maskedlark/privacy/charge.py",
        "maskedlark/privacy/composing/random_allocation.py",
        "maskedlark/privacy/composing/renyi.py",
        "maskedlark/releases/release.py",
        "maskedlark/releases/query.py",
        "maskedlark/releases/counting.py",
        "adserver/collecting/task_settings.py",
        "adserver/measuring/intervals.py",
        "adserver/measuring/measurer.py",
    ),
    "maskedlark/privacy/mechanism.py:NoiseDivision": ("maskedlark/releases/release.py",),
    "maskedlark/privacy/clip.py:Norm": (
        "maskedlark/privacy/clip.py",
        "maskedlark/autodiff/clipped_sums.py",
        "helper/gradient/general/rounding.py",
    ),
    "maskedlark/privacy/rejection_strips.py:Law": (
        "maskedlark/privacy/rejection_strips.py",
        "maskedlark/privacy/samplers.py",
    ),
    "maskedlark/releases/query.py:MeasureKind": ("maskedlark/releases/query.py",),
    "maskedlark/reports/task_kinds.py:LabelKind": (
        "maskedlark/reports/report.py",
        "maskedlark/reports/task.py",
    ),
    "maskedlark/federated/kinds.py:ServerOptimizerKind": ("maskedlark/federated/server_optimizer.py",),
    "maskedlark/federated/kinds.py:NoiseUnit": ("maskedlark/federated/draw_and_discard.py",),
}
"""Where an enum is defined, and the modules that must not type-check until they handle a new member."""
UNHANDLED: Final = re.compile(": error: .*(ADDED_BY_A_TEST|Missing return statement)")


def add_member(folder: Path, place: str) -> None:
    """Give an enum of the copy one member more."""
    file, name = place.split(":")
    lines = (folder / file).read_text().split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {name}("))
    first = next(i for i in range(start, len(lines)) if " = " in lines[i] and lines[i].startswith("    "))
    lines.insert(first, '    ADDED_BY_A_TEST = "added_by_a_test"')
    (folder / file).write_text("\n".join(lines))


@pytest.mark.slow
def test_a_new_member_of_an_enum_does_not_type_check_until_each_ladder_handles_it(tmp_path: Path) -> None:
    for part in ("maskedlark", "helper", "adserver", "protos"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "*.nb*"))
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    for place in LADDERS:
        add_member(tmp_path, place)
    files = sorted({file for files in LADDERS.values() for file in files})
    # Types of other packages, most of mypy's work without a cache, decide nothing about our enums. What
    # returns one of them may end without a return statement, hence the check of each `match` too.
    alone = ("--no-site-packages", "--ignore-missing-imports", "--no-incremental", "--cache-dir=/dev/null")
    each_match = "--enable-error-code=exhaustive-match"
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *alone, each_match, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in ran.stdout.splitlines() if UNHANDLED.search(line)]
    assert {line.split(":")[0] for line in found} == set(files), "\n".join([*found, ran.stderr])

"""Every page with blocks runs as a reader would run it: a fresh clone, a plain shell, nothing set.

What a page must lead to stands beside it here. Pages about containers have no blocks: there is no engine.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.docs.reading import BLOCK, ROOT, Reading, clone_into, read, with_environment

TASK_ID: Final = re.compile("[0-9a-f]{64}")


def first_model(reading: Reading) -> None:
    assert (reading.clone / "play" / "trained.onnx").stat().st_size > 10_000
    assert "accuracy" in reading.stdout


def measurement(reading: Reading) -> None:
    assert "purchases of new visitors" in reading.stdout
    assert (reading.clone / "shop" / "purchases.png").stat().st_size > 5_000
    assert (reading.clone / "shop" / "purchases.csv").read_text().startswith("month,visitor,")


def evaluate(reading: Reading) -> None:
    found = re.search(r"AUC (0\.\d+), between (0\.\d+) and ([01]\.\d+)", reading.stdout)
    assert found is not None, reading.stdout
    assert 0 <= float(found[2]) <= float(found[1]) <= float(found[3]) <= 1  # noise decides how good it is
    assert (reading.clone / "shop" / "curves.png").stat().st_size > 20_000


def quickstart(reading: Reading) -> None:
    runs = sorted(path.name for path in (reading.clone / "play" / "runs").iterdir())
    assert runs == ["1", "2"]
    for run in runs:
        assert (reading.clone / "play" / "runs" / run / "trained.onnx").stat().st_size > 300
    summary = json.loads((reading.clone / "play" / "runs" / "2" / "summary.json").read_text())
    assert 0.9 < summary["plain"]["auc"] <= 1  # the table's label follows its columns
    assert 1 <= summary["chosen_round"] <= summary["rounds"]
    assert summary["epsilon"] <= 1
    assert "epsilon 1" in reading.stdout
    lines = (reading.clone / "scored.csv").read_text().splitlines()
    assert lines[0].endswith(",chance of yes,not scored because")
    assert f"{len(lines) - 1} of {len(lines) - 1} rows are scored" in reading.stdout
    home = reading.clone / "home" / "runs" / "1"
    summary = json.loads((home / "summary.json").read_text())
    rows = summary["rows"]
    assert rows["reported"] + rows["panel"] + sum(rows["left_out"].values()) == rows["read"] > 6_000
    assert 0 < summary["epsilon"] <= 3
    assert summary["auc"] > 0.8
    assert (home / "trained-of-columns.onnx").exists()


def sums(reading: Reading) -> None:
    header, in_all, *_ = (reading.clone / "sums" / "runs" / "1" / "measured.csv").read_text().splitlines()
    assert header.startswith("device,minutes value,")
    assert in_all.startswith("(all),")
    assert "spent and reserved of the dataset by then" in reading.stdout


def federated(reading: Reading) -> None:
    assert (reading.clone / "play" / "trained.onnx").exists()
    assert "a person in task 'visits at home'," in reading.stdout
    assert (reading.clone / "play" / "shop.onnx").exists()
    assert reading.stdout.count("30 devices saw 4 rounds: 120 answered") == 2
    assert re.search(r"after 4 rounds +loss .*, AUC ", reading.stdout)
    assert "30 devices: 90 updates accepted" in reading.stdout
    assert "60 updates accepted" in reading.stdout


def readme(reading: Reading) -> None:
    shown = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0]
    printed = reading.stdout[reading.stdout.index("569 sealed reports") :]
    assert but_for_noise(printed).startswith(but_for_noise(shown))
    assert (reading.clone / "tumours.onnx").exists()


def but_for_noise(text: str) -> str:
    """What each run prints alike."""
    return " ".join(re.sub(r"-?(\d+\.\d+|inf|NaN)", "#", text).split())


def dashboard(reading: Reading) -> None:
    assert "newsletter waits for 50 more reports" in reading.stdout
    assert sum(bool(TASK_ID.fullmatch(line)) for line in reading.stdout.splitlines()) == 2
    assert reading.stdout.count("is revoked") == 2


CHECKS: Final[dict[str, Callable[[Reading], None]]] = {
    "README.md": readme,
    "docs/tutorial/quickstart.md": quickstart,
    "docs/tutorial/sums.md": sums,
    "docs/tutorial/first-model.md": first_model,
    "docs/tutorial/federated.md": federated,
    "docs/tutorial/measurement.md": measurement,
    "docs/how-to/evaluate.md": evaluate,
    "docs/how-to/dashboard.md": dashboard,
}
ELSEWHERE: Final = {
    "docs/how-to/audit-log.md": "tests/docs/test_operations.py",
    "docs/how-to/backup.md": "tests/docs/test_operations.py",
    "docs/how-to/budget.md": "tests/docs/test_budget_howto.py",
    "docs/how-to/onnx.md": "tests/docs/test_onnx_how_to.py",
    "docs/how-to/operators.md": "tests/docs/test_operators_page.py",
    "docs/how-to/train-a-part.md": "tests/docs/test_train_a_part.py",
    "docs/tutorial/heads.md": "tests/docs/test_heads_tutorial.py",
    "docs/tutorial/own-model.md": "tests/docs/test_notebook_tutorial.py",
}
"""Pages whose blocks another test runs."""


def pages_with_blocks() -> set[str]:
    found = [
        ROOT / "README.md",
        *(ROOT / "docs" / "tutorial").glob("*.md"),
        *(ROOT / "docs" / "how-to").glob("*.md"),
    ]
    return {str(page.relative_to(ROOT)) for page in found if BLOCK.search(page.read_text())}


def test_every_page_with_blocks_is_run_by_a_test() -> None:
    assert pages_with_blocks() == CHECKS.keys() | ELSEWHERE.keys()
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.page
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", CHECKS)
def test_the_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    reading = read(page, with_environment(clone_into(tmp_path)))
    reading.check()
    CHECKS[page](reading)

"""CONTRIBUTING's recipes name files that exist, and work when they are followed on a copy of the tree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.reading import ROOT, clone_into

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^\*\*(an? [\w ,]+)\.\*\*(.*?)(?=^\*\*|^## )", PAGE, re.MULTILINE | re.DOTALL))
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]+\.\w+)`")

ARM = ("Loss.MSE | Loss.POISSON", "Loss.MSE | Loss.QUARTIC | Loss.POISSON")
LOSS = {
    "maskedlark/model/losses.py": [
        (
            '    POISSON = "poisson"\n',
            '    QUARTIC = "quartic"\n    """(z - y)^4; one output."""\n    POISSON = "poisson"\n',
        ),
        ARM,
    ],
    "helper/gradient/exact/layers/losses.py": [
        ARM,
        (
            "        case Loss.POISSON:\n",
            "        case Loss.QUARTIC:\n"
            "            np.multiply(4.0, (z[:, None] - y) ** 3, out=coefficients)\n"
            "        case Loss.POISSON:\n",
        ),
    ],
    "maskedlark/autodiff/output_gradients.py": [
        (
            "        case Loss.POISSON:\n",
            "        case Loss.QUARTIC:\n"
            "            return 4.0 * (outputs - truth) ** 3\n"
            "        case Loss.POISSON:\n",
        )
    ],
    "adserver/training/inference.py": [
        (
            "        case Loss.POISSON:\n",
            "        case Loss.QUARTIC:\n"
            "            return np.asarray((first - truth) ** 4)\n"
            "        case Loss.POISSON:\n",
        ),
        ARM,
    ],
    "adserver/training/rehearsal.py": [ARM],
    "adserver/training/eval_set.py": [ARM],
    "tests/helper/gradient/test_losses.py": [
        ("    Loss.MSE: lambda", "    Loss.QUARTIC: lambda z, y: (z[0] - y) ** 4,\n    Loss.MSE: lambda")
    ],
}
"""What a contributor writes for a new loss, (z - y)^4, in the files whose tests run here."""

STRATEGY = '''
from typing import Literal

from maskedlark.canonical import canonical
from maskedlark.federated.strategies.fedprox import FedProx


@canonical
class Anchored(FedProx):
    """FedProx under another name."""

    kind: Literal["anchored"] = "anchored"  # type: ignore[assignment]
'''


def change(folder: Path, file: str, before: str, after: str) -> None:
    text = (folder / file).read_text()
    assert before in text, f"{file}: {before}"
    (folder / file).write_text(text.replace(before, after))


def run_tests(folder: Path, *tests: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]


@pytest.mark.parametrize("name", RECIPES)
def test_every_file_of_a_recipe_exists(name: str) -> None:
    for file in FILE.findall(RECIPES[name]):
        assert "NAME" in file or (ROOT / file).exists(), file


@pytest.mark.slow
def test_a_loss_that_follows_the_recipe_has_equal_derivatives_on_both_paths(tmp_path: Path) -> None:
    assert LOSS.keys() <= set(FILE.findall(RECIPES["a loss"]))
    copy = clone_into(tmp_path)
    for file, changes in LOSS.items():
        for before, after in changes:
            change(copy, file, before, after)
    run_tests(copy, "tests/helper/gradient/test_losses.py")


@pytest.mark.slow
def test_a_strategy_that_follows_the_recipe_is_found_by_the_tests_of_strategies(
    tmp_path: Path,
) -> None:
    copy, folder = clone_into(tmp_path), "maskedlark/federated/strategies"
    assert {f"{folder}/NAME.py", f"{folder}/__init__.py", "maskedlark/federated/kinds.py"} <= set(
        FILE.findall(RECIPES["a federated strategy"])
    )
    (copy / folder / "anchored.py").write_text(STRATEGY)
    change(
        copy,
        f"{folder}/__init__.py",
        '    "dp-fedavg": DpFedAvg,\n',
        '    "anchored": Anchored,\n    "dp-fedavg": DpFedAvg,\n',
    )
    change(
        copy,
        f"{folder}/__init__.py",
        "from maskedlark.federated.strategies.line import Line\n",
        "from maskedlark.federated.strategies.anchored import Anchored\n"
        "from maskedlark.federated.strategies.line import Line\n",
    )
    change(copy, "maskedlark/federated/kinds.py", '("dp-fedavg"', '("anchored", "dp-fedavg"')
    run_tests(
        copy, "tests/maskedlark/federated/test_strategy.py", "-k", "survives_its_bytes or name_every_strategy"
    )

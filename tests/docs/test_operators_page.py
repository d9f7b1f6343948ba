"""docs/how-to/operators.md: its lists are the code's, every block runs, and what it calls exact lowers."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from adserver.training.merged_parameters import separate_parameters
from adserver.training.model_file import read_model
from helper.gradient.exact.lowering.lowering import lower
from maskedlark.model.exactness import EXACT, INSTEAD
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.operators.table import OPERATORS
from tests.docs.reading import run_mixed

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "operators.md").read_text()
EXACT_FILES = ("embedded", "wide-and-deep", "folded", "normalised", "seen", "chosen")


def operators_of_row(name: str) -> set[str]:
    (row,) = re.findall(rf"^\| {re.escape(name)}[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def test_the_lists_are_the_codes() -> None:
    assert operators_of_row("exact") == EXACT
    forced = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert forced == INSTEAD
    assert operators_of_row("become one of these") == OPERATORS.keys() - EXACT - INSTEAD.keys()


@pytest.mark.slow
def test_every_block_runs_and_what_is_called_exact_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_mixed(PAGE)
    assert len(shown) == len(EXACT_FILES) + 1
    for name, said in zip(EXACT_FILES, shown, strict=False):
        assert "helpers compute the model exactly" in said, name
        encoded = separate_parameters(read_model(tmp_path / f"{name}.onnx"))
        lower(parse(encoded, num_features=14), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    assert "the operator Gelu: use Relu, Elu or SiLU" in shown[-1]
    for name in (*EXACT_FILES, "gelu"):
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx")
        features = {session.get_inputs()[0].name: np.zeros((5, 14), np.float32)}
        (outputs,) = session.run(None, features)
        assert outputs.shape == (5, 1), name
    # Scale and shift of batch norm are parameters only where no linear layer is before it to hold them
    folded, normalised = (shown[EXACT_FILES.index(name)] for name in ("folded", "normalised"))
    assert [said.count(".weight") for said in (folded, normalised)] == [2, 3]

"""docs/tutorial/heads.md as a reader does it: its bash in one shell, all its Python in one notebook."""

import re
from pathlib import Path

import onnxruntime
import pytest

from tests.docs import reading
from tests.docs.reading import clone_into, with_environment
from tests.docs.test_notebook_tutorial import as_typed

PAGE = "docs/tutorial/heads.md"


@pytest.mark.page
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_clicks_and_sales_are_trained_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "blocks", as_typed)
    done = reading.read(PAGE, with_environment(clone_into(tmp_path)))
    said = done.check()
    assert "3 label codes" in said
    found = {name: float(auc) for name, auc in re.findall(r"^(click|sale): loss .*AUC (0\.\d+)", said, re.M)}
    assert found.keys() == {"click", "sale"}, said
    assert min(found.values()) > 0.55  # noise decides how good they are; .5 is a coin
    session = onnxruntime.InferenceSession(done.clone / "play-ads" / "trained.onnx")
    assert [output.name for output in session.get_outputs()] == ["click", "sale"]

"""docs/how-to/onnx.md: every block runs, in order, in one folder."""

from pathlib import Path

import pytest

from tests.docs.reading import BLOCK, run_mixed

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "onnx.md"


@pytest.mark.slow
def test_every_block_of_the_page_on_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    kinds = [kind for kind, _ in BLOCK.findall(page)]
    assert kinds == ["python", "bash", "python", *["python", "bash"] * 4]
    shown = run_mixed(page)
    assert "257 parameters, 1 output," in shown[0]
    assert "780 parameters, 1 output," in shown[1]
    assert "40345 parameters, 1 output," in shown[2]
    assert "15 parameters, 1 output," in shown[3]
    assert "15 parameters, 1 output," in shown[4]
    assert (tmp_path / "net.onnx.data").exists()
    assert not (tmp_path / "legacy.onnx.data").exists()

"""docs/how-to/onnx.md: every block runs, in order, in one folder."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "onnx.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_block_of_the_page_on_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text())
    kinds = [kind for kind, _ in blocks]
    assert kinds == ["python", "bash", "python", *["python", "bash"] * 4]
    known: dict[str, object] = {}
    shown = []
    for kind, text in blocks:
        if kind == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's exporters warn about themselves
                exec(text, known)  # noqa: S102 # the page's own
            continue
        done = subprocess.run(
            ["/bin/bash", "-c", text],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert "257 parameters, 1 outputs" in shown[0]
    assert "780 parameters, 1 outputs" in shown[1]
    assert "40345 parameters, 1 outputs" in shown[2]
    assert "15 parameters, 1 outputs" in shown[3]
    assert "15 parameters, 1 outputs" in shown[4]
    assert (tmp_path / "net.onnx.data").exists()
    assert not (tmp_path / "legacy.onnx.data").exists()

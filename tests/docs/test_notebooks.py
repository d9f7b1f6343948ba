"""The notebooks run from top to bottom in an empty folder, and are stored without what they print."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.reading import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "tutorial").glob("*.ipynb"))
SAYS = {
    "own-data": ["480 sealed reports", "roc_auc", "epsilon spent"],
    "first-measurement": ["desktop", "phone", "tablet"],
}
_LONGEST_S = 1_800


def test_there_are_two_and_each_is_checked() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SAYS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    stored = json.loads(path.read_text())
    nbformat.validate(nbformat.reads(path.read_text(), as_version=4))
    for cell in stored["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert path.read_text() == json.dumps(stored, indent=1) + "\n"


@pytest.mark.page
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for name in [name for name in os.environ if name.startswith(("ADSERVER_", "HELPER_"))]:
        monkeypatch.delenv(name)
    notebook = nbformat.reads(path.read_text(), as_version=4)
    here = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=_LONGEST_S, kernel_name="python3", resources=here).execute()
    said = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    for words in SAYS[path.stem]:
        assert words in said, said
    assert "image/png" in said

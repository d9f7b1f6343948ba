"""docs/tutorial/own-model.md as a reader does it: its bash in one shell, all its Python in one notebook."""

import re
from pathlib import Path

import pytest

from tests.docs import reading
from tests.docs.reading import BLOCK, ROOT, clone_into, with_environment

PAGE = "docs/tutorial/own-model.md"


def as_typed(page: Path) -> list[str]:
    """The shell's blocks in order, and between them the notebook: every cell, in one process."""
    found = BLOCK.findall(page.read_text())
    cells = [text for kind, text in found if kind == "python"]
    first = next(index for index, (kind, _) in enumerate(found) if kind == "python")
    shell = [(index, text) for index, (kind, text) in enumerate(found) if kind == "bash"]
    before = [text for index, text in shell if index < first]
    after = [text for index, text in shell if index > first]
    return [*before, "python - <<'PYTHON'\n" + "\n".join(cells) + "PYTHON\n", *after]


@pytest.mark.page
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_notebook_tutorial_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "blocks", as_typed)
    done = reading.read(PAGE, with_environment(clone_into(tmp_path)))
    said = done.check()
    assert "13 features, 2 classes" in said
    assert "roc_auc" in said
    assert "examples alone: " in said
    assert "warning: the model reads" not in said
    found = re.search(r"right in (0\.\d+) of (\d+) raw rows", said)
    assert found is not None, said
    assert float(found[1]) > 0.6
    assert re.search(r"verdict: The private model .* plain training .*95 %, on the same", said), said
    assert "than age alone" in said or "apart from age alone" in said
    assert (done.clone / "play-data" / "income.onnx").stat().st_size > 5_000
    assert re.search(r"AUC 0\.\d+ \(99 %: 0\.\d+ to 0\.\d+\)", said), said
    assert "rows are scored, in play-data/scored.csv" in said


def test_the_page_has_one_notebook() -> None:
    typed = as_typed(ROOT / PAGE)
    assert sum("python - <<" in block for block in typed) == 1
    assert "Client.from_environment()" in typed[-2]

import importlib.util
import re
from pathlib import Path

import pytest

from maskedlark.errors import JobReason, ModelReason, Reason, ReportReason

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_the_reference_is_what_the_code_says_and_the_site_lists_it() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text()
    written = generated()
    for name, page in written.items():
        assert f"- reference/{name}\n" in nav, f"{name} is missing in the nav of mkdocs.yml"
        assert (DOCS / "reference" / name).read_text() == page, f"{name} is out of date: make docs"
        assert page.startswith("# "), f"{name} would be named by its file in the site's list of pages"
        assert not re.search(r"^\* .*\.\.\.$", page, re.MULTILINE), f"{name} has a summary that is cut short"
    noted = {path for path in (DOCS / "reference").rglob("*.md") if "docs/generate.py" in path.read_text()}
    assert noted == {DOCS / "reference" / name for name in written}, "pages of what is gone: make docs"


@pytest.mark.parametrize("reason", [*ReportReason, *ModelReason, *JobReason], ids=lambda reason: reason.value)
def test_every_reason_says_what_it_means(reason: Reason) -> None:
    assert len(reason.meaning) > 10
    assert f"`{reason.value}`" in (DOCS / "reference" / "errors.md").read_text()

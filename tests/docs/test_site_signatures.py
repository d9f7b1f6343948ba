"""The site's API page draws how the project's classes are built."""

from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe", reason="the extra `site`")
EXTENSION = Path(__file__).parents[2] / "docs" / "griffe_frozen.py"
MODULE = """
from maskedlark.{module} import {decorator}

@{decorator}
class Box:
    width: int
    colour: str = "red"
"""


@pytest.mark.parametrize(("module", "decorator"), [("frozen", "frozen"), ("canonical", "canonical")])
def test_a_class_of_the_house_has_a_signature_on_the_site(
    tmp_path: Path, module: str, decorator: str
) -> None:
    (tmp_path / "boxes.py").write_text(MODULE.format(module=module, decorator=decorator))
    extensions = griffe.load_extensions(str(EXTENSION))
    box = griffe.load("boxes", search_paths=[tmp_path], extensions=extensions)["Box"]
    drawn = {one.name: (one.kind.value, one.default) for one in box.parameters if one.name != "self"}
    assert drawn == {"width": ("keyword-only", None), "colour": ("keyword-only", "'red'")}

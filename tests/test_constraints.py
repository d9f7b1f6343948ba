"""The versions that `make` installs, on the oldest Python that pyproject.toml admits."""

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT: Final = Path(__file__).parents[1]


def test_each_pinned_version_runs_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a pin that needs 3.11.5 ends its `make demo` with a resolver's error."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = SpecifierSet(project["requires-python"])
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    looked_at, wrong = 0, []
    for pin in pins:
        try:
            found = metadata(pin.name)
        except PackageNotFoundError:
            continue
        looked_at += 1
        needs = str(found.json.get("requires_python", ""))
        if f"{oldest.version}.0" not in SpecifierSet(needs):
            wrong.append(f"{pin.name} {found['Version']} needs Python {needs}")
    assert wrong == []
    assert looked_at > len(pins) * 0.8

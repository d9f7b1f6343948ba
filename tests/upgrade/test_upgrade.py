"""This version goes on with data of the release before, and that one with this one's data or refuses it.

The release before is the newest tag below HEAD, or any revision: `UPGRADE_FROM=TAG pytest tests/upgrade`.
Without a tag, this version goes on with its own data in another process.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.reading import ROOT, clone_into
from tests.patience import HANGS_S
from tests.upgrade.folder import RECORDS

FILE: Final = Path("tests") / "upgrade" / "folder.py"
RUN: Final = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
MIGRATED: Final = """
from sqlalchemy import Column, Integer
MIGRATIONS: Final[Migrations] = {
    1: lambda operations: operations.add_column("tasks", Column("later", Integer))
}"""
_TAG: Final = re.compile(r"v?\d+\.\d+\.\d+")

pytestmark = pytest.mark.slow


def git(*arguments: str) -> bytes:
    command = [shutil.which("git") or "git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=HANGS_S).stdout


def release_before() -> str | None:
    """The newest release that is not HEAD itself."""
    asked = os.environ.get("UPGRADE_FROM")
    if asked:
        return asked
    head = set(git("tag", "--points-at", "HEAD").decode().split())
    tags = git("tag", "--merged", "HEAD", "--sort=-version:refname").decode().split()
    return next((tag for tag in tags if _TAG.fullmatch(tag) and tag not in head), None)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release before; this one's, if there is none."""
    before = release_before()
    if before is None:
        return ROOT
    tree = tmp_path_factory.mktemp("release before")
    with tarfile.open(fileobj=BytesIO(git("archive", before))) as archive:
        archive.extractall(tree, filter="data")
    return tree


def run(tree: Path, what: str, folder: Path) -> dict[str, Any]:
    """What one version makes of a folder: its own script if it has one, else this one's, with its modules."""
    script = tree / FILE if (tree / FILE).exists() else ROOT / FILE
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUN, str(tree), str(script), what, str(folder)]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version after this one, whose tables have one column more."""
    tree = clone_into(tmp_path_factory.mktemp("release after"))
    for version, migrations in (
        ("helper/ledger/schema.py", "helper/ledger/migrations.py"),
        ("adserver/store/version.py", "adserver/store/migrations.py"),
    ):
        change(tree / version, "SCHEMA_VERSION: Final = 1", "SCHEMA_VERSION: Final = 2")
        change(
            tree / migrations,
            "MIGRATIONS: Final[Migrations] = {}",
            MIGRATED,
        )
    return tree


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, file
    file.write_text(text.replace(before, after))


def check_goes_on(older: Path, newer: Path, folder: Path) -> dict[str, Any]:
    """Up, down and up again; what the older version makes of the newer one's data."""
    made = run(older, "make", folder)
    upgraded = run(newer, "use", folder)
    assert "refused" not in upgraded, upgraded
    assert upgraded["rounds"][0] == made["rounds"][0]
    assert upgraded["sum"] == made["sum"]
    assert upgraded["query"] == made["query"]
    assert upgraded["used again"] == 0
    assert upgraded["waiting"] == RECORDS + 1
    downgraded = run(older, "use", folder)
    if "refused" not in downgraded:
        assert downgraded["rounds"][0] == upgraded["rounds"][1]
        assert downgraded["query"] == made["query"]
        assert downgraded["used again"] == 0
        assert downgraded["waiting"] == RECORDS + 2
    again = run(newer, "use", folder)  # whatever the older one did, nothing is lost
    assert again["query"] == made["query"]
    assert again["used again"] == 0
    assert again["sum"] == made["sum"]
    assert again["waiting"] == downgraded.get("waiting", upgraded["waiting"]) + 1
    return downgraded


def test_this_version_goes_on_with_what_the_release_before_left(older: Path, tmp_path: Path) -> None:
    downgraded = check_goes_on(older, ROOT, tmp_path)
    assert "version" in downgraded.get("refused", "version")


def test_this_version_leaves_tables_alone_that_a_later_one_has_changed(newer: Path, tmp_path: Path) -> None:
    assert "version" in check_goes_on(ROOT, newer, tmp_path)["refused"]

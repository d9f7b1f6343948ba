"""Two builds of the source distribution (in CI `make dist` compares them, and those of the wheel)."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.installed import ROOT, check_same_bytes, copy_source, packed, packed_elsewhere


@pytest.mark.long
def test_two_source_distributions_have_the_same_bytes(tmp_path: Path) -> None:
    """Built from copies of other times and modes, in other folders and time zones, under another umask."""
    first = packed_elsewhere(ROOT, tmp_path / "first", "--sdist")
    again = packed(
        tmp_path / "first" / "another" / "place", tmp_path / "again", "--sdist", PYTHONHASHSEED="1"
    )
    second = packed_elsewhere(tmp_path / "first" / "another" / "place", tmp_path / "second", "--sdist")
    assert [one.name for one in first] == [one.name for one in again] == [one.name for one in second]
    check_same_bytes(first, again)
    check_same_bytes(first, second)


@pytest.mark.long
def test_what_git_does_not_track_is_not_in_a_source_distribution(tmp_path: Path) -> None:
    source = tmp_path / "source"
    copy_source(ROOT, source)
    subprocess.run(["git", "init", "--quiet", str(source)], check=True)  # noqa: S607 # the user's git
    subprocess.run(["git", "-C", str(source), "add", "."], check=True)  # noqa: S607 # the user's git
    strangers = ("adserver/notes.py", "helper/trust/keys.json", "browser_sim/people.csv", "tests/test_x.py")
    for name in strangers:
        (source / name).write_text("SECRET")
    [package] = packed(source, tmp_path / "out", "--sdist")
    with tarfile.open(package) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive}
        texts = {name: file.read() for name, file in files.items() if file is not None}
    assert texts.keys().isdisjoint(strangers)
    assert b"notes.py" not in texts["masked_lark.egg-info/SOURCES.txt"]
    assert {"helper/core.py", "adserver/dashboard/templates/base.html", "protos/helper.proto"} < texts.keys()


def test_two_builds_that_differ_are_noticed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    with pytest.raises(SystemExit, match="two builds differ"):
        check_same_bytes([tmp_path / "one"], [tmp_path / "other"])

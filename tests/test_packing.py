"""Two builds of the source distribution; `make dist` compares those of the wheel too, which takes minutes."""

from pathlib import Path

import pytest

from tests.installed import ROOT, check_same_bytes, packed, packed_elsewhere


@pytest.mark.slow
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


def test_two_builds_that_differ_are_noticed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    with pytest.raises(SystemExit, match="two builds differ"):
        check_same_bytes([tmp_path / "one"], [tmp_path / "other"])

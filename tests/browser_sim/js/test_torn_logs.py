"""What stands whole in a LevelDB log."""

import struct
from pathlib import Path

import pytest

from tests.browser_sim.js.torn_logs import mend, whole_bytes

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def record(length: int, kind: int = FULL) -> bytes:
    return struct.pack("<IHB", 0, length, kind) + bytes(length)


WHOLE = record(100) + record(20)


@pytest.mark.parametrize("torn", [b"", record(9)[:3], record(9)[:7], record(9)[:15], record(40, FIRST)])
def test_a_half_record_at_the_end_is_not_whole(torn: bytes) -> None:
    assert whole_bytes(WHOLE + torn) == len(WHOLE)


def test_a_record_over_three_blocks_is_whole_with_its_last_part() -> None:
    parts = record(32_768 - 7 - 127, FIRST) + record(32_768 - 7, MIDDLE) + record(5, LAST)
    assert whole_bytes(record(120) + parts) == len(record(120) + parts)
    assert whole_bytes(record(120) + parts[:-1]) == 127


def test_the_rest_of_a_block_that_is_too_short_for_a_header_is_skipped() -> None:
    filled = record(32_768 - 7 - 4) + bytes(4)
    assert whole_bytes(filled + record(3)) == len(filled) + 10


def test_a_profiles_torn_logs_are_cut_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "Default" / "IndexedDB" / "http_localhost_1.indexeddb.leveldb"
    folder.mkdir(parents=True)
    (folder / "000003.log").write_bytes(WHOLE + record(9)[:7])
    (folder / "MANIFEST-000001").write_bytes(WHOLE)
    assert mend(tmp_path) == 1
    assert (folder / "000003.log").read_bytes() == WHOLE
    assert mend(tmp_path) == 0

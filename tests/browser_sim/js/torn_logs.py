"""The end of a LevelDB log whose writer was killed between the two writes of a record.

Chromium keeps IndexedDB in LevelDB with `reuse_logs`. A log that ends within a record is read without
complaint, but it is then appended to: at the start after that the half record stands in its midst, and
Chromium drops the whole database (https://github.com/google/leveldb/issues/1287). No page can mend this, so a
test of a page's own promises cuts such an end off, as LevelDB should, and counts it.
"""

import struct
from pathlib import Path
from typing import Final

_BLOCK: Final = 32_768
_HEADER: Final = struct.Struct("<IHB")  # checksum, length, kind
_FULL: Final = 1
_LAST: Final = 4


def mend(profile: Path) -> int:
    """Cut what is torn off the logs of a profile's databases; how many were torn."""
    torn = 0
    for folder in profile.glob("Default/IndexedDB/*.leveldb"):
        for log in (*folder.glob("*.log"), *folder.glob("MANIFEST-*")):
            content = log.read_bytes()
            whole = whole_bytes(content)
            if whole < len(content):
                torn += 1
                with log.open("r+b") as file:
                    file.truncate(whole)
    return torn


def whole_bytes(log: bytes) -> int:
    """The length of a log without the record that it ends within, if it does."""
    at = whole = 0
    while at < len(log):
        in_block = _BLOCK - at % _BLOCK
        if in_block < _HEADER.size:  # too short for a header: zeros
            at += in_block
            continue
        if len(log) - at < _HEADER.size:
            break
        _checksum, length, kind = _HEADER.unpack_from(log, at)
        at += _HEADER.size + length
        if at > len(log):
            break
        if kind in (_FULL, _LAST):
            whole = at
    return whole

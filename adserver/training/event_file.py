"""TensorBoard's event files, written without TensorBoard: a library of it would bring torch into the server.

    with EventFile.open(folder / "events.out.tfevents") as events:
        events.add(1, {"eval/loss": 0.7}, at_s=1000.0)

A file is a sequence of records: length (u64), its checksum (u32), an `Event` message, its checksum (u32), all
little-endian. Each record is with the system once `add` returns.

Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, framework/summary.proto.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C (Castagnoli), its bits reversed
_FILE_VERSION: Final = b"brain.Event:2"
_WALL_TIME, _STEP, _VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"
"""The keys of the messages' fields, as the wire has them."""


class EventFile:
    """One file, appended to."""

    def __init__(self, stream: RawIOBase) -> None:
        self._stream = stream

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["EventFile"]:
        """Open a new file; create its folder if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a round that was added is there though the process is killed.
        with path.open("wb", buffering=0) as stream:
            events = cls(stream)
            # The format has the version in a record of its own, before all others.
            events._write(_double(_WALL_TIME, 0.0) + _bytes(_VERSION, _FILE_VERSION))
            yield events

    def add(self, step: int, values: Mapping[str, float], *, at_s: float) -> None:
        """Add the scalars of one step, by their tags; `at_s` is in Unix seconds."""
        summary = b"".join(
            _bytes(_VALUE, _bytes(_TAG, tag.encode()) + _SIMPLE_VALUE + struct.pack("<f", value))
            for tag, value in values.items()
        )
        self._write(_double(_WALL_TIME, at_s) + _STEP + _varint(step) + _bytes(_SUMMARY, summary))

    def _write(self, event: bytes) -> None:
        length = len(event).to_bytes(8, "little")
        self._stream.write(length + _checksum(length) + event + _checksum(event))


def _double(key: bytes, value: float) -> bytes:
    return key + struct.pack("<d", value)


def _bytes(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))


def _checksum(record: bytes) -> bytes:
    """Return the CRC-32C of a record, rotated and shifted as the format requires."""
    crc = 0xFFFFFFFF
    for byte in record:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    # Masked, because a CRC of data that itself holds CRCs is weak.
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def _of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ _POLYNOMIAL * (value & 1)
    return value


_TABLE: Final = tuple(map(_of_byte, range(256)))

"""TensorBoard's files, against a published checksum and another implementation that reads them."""

import struct
from pathlib import Path

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from adserver.training import event_file
from adserver.training.event_file import EventFile


def records(stored: bytes) -> list[bytes]:
    """The messages of a file, their checksums checked by another implementation."""
    found, at = [], 0
    while at < len(stored):
        (length,) = struct.unpack("<Q", stored[at : at + 8])
        assert masked(stored[at : at + 8]) == stored[at + 8 : at + 12]
        found.append(stored[at + 12 : at + 12 + length])
        assert masked(found[-1]) == stored[at + 12 + length : at + 16 + length]
        at += 16 + length
    return found


def masked(record: bytes) -> bytes:
    crc = int(crc32c(record))
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32).to_bytes(4, "little")


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 1 << 40])
def test_a_step_is_read_back_with_its_values(tmp_path: Path, step: int) -> None:
    with EventFile.open(tmp_path / "new" / "events") as events:
        events.add(step, {"eval/loss": 0.5, "round/norm": -2.0}, at_s=1234.5)
        events.add(step + 1, {}, at_s=1235.0)
    first, *read = [Event.FromString(one) for one in records((tmp_path / "new" / "events").read_bytes())]
    assert first.file_version == "brain.Event:2"
    assert [(one.step, one.wall_time) for one in read] == [(step, 1234.5), (step + 1, 1235.0)]
    assert [(value.tag, value.simple_value) for value in read[0].summary.value] == [
        ("eval/loss", 0.5),
        ("round/norm", -2.0),
    ]


def test_a_step_can_be_read_before_the_file_is_closed(tmp_path: Path) -> None:
    with EventFile.open(tmp_path / "events") as events:
        events.add(1, {"x": 1.0}, at_s=0.0)
        assert len(records((tmp_path / "events").read_bytes())) == 2


def test_the_checksum_is_that_of_rfc_3720_rotated_and_shifted() -> None:
    # RFC 3720, B.4: 32 bytes of zeros
    crc = 0x8A9136AA
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    assert event_file._checksum(bytes(32)) == expected.to_bytes(4, "little")

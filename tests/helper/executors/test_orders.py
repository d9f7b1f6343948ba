from collections import Counter

import pytest

from helper.executors.dispatch import _assign
from helper.executors.orders import Done, Failed, bits, flags, read, write
from maskedlark.errors import InvalidTask


def test_messages_come_back_as_they_were_written() -> None:
    done = Done(done=(0, 2))
    message = read(Done, write(done, [b"", b"one", bytes(1000)]))
    assert message.head == done
    assert message.parts == (b"", b"one", bytes(1000))


@pytest.mark.parametrize("spoil", [lambda m: b"", lambda m: m[:-1], lambda m: m[:3], lambda m: m + b"\1" * 8])
def test_a_message_that_is_cut_or_another_kind_is_refused(spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(InvalidTask):
        read(Done, spoil(write(Done(done=()), [b"part"])))
    with pytest.raises(InvalidTask):
        read(Failed, write(Done(done=())))


def test_flags_are_as_many_as_there_are_records() -> None:
    packed = bits(flags(b"\x05\x01", 9))
    assert packed == b"\x05\x01"
    with pytest.raises(InvalidTask):
        flags(packed, 17)


def test_few_segments_move_when_a_worker_comes_or_goes() -> None:
    segments = [b"segment %d" % number for number in range(300)]
    before = _assign(segments, [b"a", b"b", b"c"])
    assert sorted(Counter(before.values()).values()) == [100, 100, 100]
    after = _assign(segments, [b"a", b"b", b"c", b"d"])
    stay = sum(before[one] == after[one] for one in segments)
    assert stay > 150  # 225 at best
    assert _assign(segments[::-1], [b"c", b"a", b"b"]) == before

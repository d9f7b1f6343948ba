from pathlib import Path

import pytest

from helper.executors.handshake import HandshakeClient, HandshakeServer, JoinRefused, JoinToken, NotSealed
from helper.executors.orders import Done, Failed, bits, flags, read, write
from helper.executors.rendezvous import assign
from helper.executors.segment_cache import SegmentCache
from maskedlark.errors import InvalidTask

TOKEN = JoinToken(b"t" * 32)


def test_head_and_worker_of_one_token_understand_each_other_and_nobody_else() -> None:
    gate, applicant = HandshakeServer(TOKEN), HandshakeClient(TOKEN)
    challenge = gate.challenge()
    admitted = gate.admit(challenge, applicant.apply(challenge))
    head, worker = admitted.session, applicant.finish(challenge, admitted.welcome)
    sealed = head.seal(b"an order", b"about")
    assert worker.open(sealed, b"about") == b"an order"
    assert head.open(worker.seal(b"an answer", b"it"), b"it") == b"an answer"
    for opener, about in ((worker, b"other"), (head, b"about")):  # moved, or sent back
        with pytest.raises(NotSealed):
            opener.open(sealed, about)
    for spoiled in (b"", sealed[:5], sealed[:-1], b"x" + sealed[1:]):
        with pytest.raises(NotSealed):
            worker.open(spoiled, b"about")


def test_no_worker_without_the_token_is_admitted() -> None:
    gate = HandshakeServer(TOKEN)
    for number in range(100):
        challenge = gate.challenge()
        with pytest.raises(JoinRefused, match="has not the join token"):
            gate.admit(challenge, HandshakeClient(JoinToken(b"%32d" % number)).apply(challenge))


def test_no_worker_of_other_numerics_is_admitted() -> None:
    gate = HandshakeServer(TOKEN)
    for number in range(100):
        challenge = gate.challenge()
        with pytest.raises(JoinRefused, match="other numerics"):
            gate.admit(challenge, HandshakeClient(TOKEN, b"%32d" % number).apply(challenge))


def test_a_worker_cannot_say_that_it_has_other_software_than_it_proved() -> None:
    gate, challenge = HandshakeServer(TOKEN), bytes(32)
    honest = HandshakeClient(TOKEN, b"o" * 32).apply(challenge)
    from helper.executors.handshake import SOFTWARE

    with pytest.raises(JoinRefused, match="has not the join token"):
        gate.admit(challenge, honest.replace((b"o" * 32).hex().encode(), SOFTWARE.hex().encode()))


def test_an_old_proof_answers_no_new_challenge() -> None:
    gate, applicant = HandshakeServer(TOKEN), HandshakeClient(TOKEN)
    application = applicant.apply(gate.challenge())
    with pytest.raises(JoinRefused):
        gate.admit(gate.challenge(), application)


def test_a_head_without_the_token_gets_no_worker_to_open_its_orders() -> None:
    applicant, other = HandshakeClient(TOKEN), JoinToken(b"u" * 32)
    challenge = bytes(32)
    asked = applicant.apply(challenge)
    with pytest.raises(JoinRefused):
        HandshakeServer(other).admit(challenge, asked)
    genuine = HandshakeServer(TOKEN).admit(challenge, asked)
    worker = applicant.finish(challenge, genuine.welcome)
    forged = other.session(b"s" * 32, challenge, b"p" * 32, is_head=True)
    with pytest.raises(NotSealed):
        worker.open(forged.seal(b"an order", b"order"), b"order")


@pytest.mark.parametrize("welcome", [b"", b"{}", b'{"sealed_secret":"00"}'])
def test_a_welcome_to_another_worker_is_refused(welcome: bytes) -> None:
    with pytest.raises(JoinRefused):
        HandshakeClient(TOKEN).finish(bytes(32), welcome)


@pytest.mark.parametrize("application", [b"", b"{}", b"\x00" * 100])
def test_an_application_that_cannot_be_read_is_refused(application: bytes) -> None:
    with pytest.raises(JoinRefused, match="cannot be read"):
        HandshakeServer(TOKEN).admit(bytes(32), application)


def test_a_token_is_long_and_nobody_elses_to_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(InvalidTask, match="cannot read the join token"):
        JoinToken.read(path)
    path.write_bytes(b"short\n")
    path.chmod(0o600)
    with pytest.raises(InvalidTask, match="at least 32 bytes"):
        JoinToken.read(path)
    path.write_bytes(b"t" * 32 + b"\n")
    assert JoinToken.read(path).proof(b"", b"", b"") == TOKEN.proof(b"", b"", b"")
    path.chmod(0o644)
    with pytest.raises(InvalidTask, match="may be read by others"):
        JoinToken.read(path)


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
    before = assign(segments, [b"a", b"b", b"c"])
    after = assign(segments, [b"a", b"b", b"c", b"d"])
    stay = sum(before[one] == after[one] for one in segments)
    assert stay > 150  # 225 at best
    assert assign(segments[::-1], [b"c", b"a", b"b"]) == before


def test_a_segment_larger_than_the_room_pushes_nothing_out() -> None:
    held = SegmentCache(0)
    assert held.get(b"name") is None
    assert held.num_bytes == 0

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from helper.executors.fleet import WorkerLost
from helper.executors.handshake import HandshakeServer, JoinToken, Session
from helper.executors.heartbeats import ASK_EVERY_S, SILENT_S, Heartbeats
from helper.executors.worker import SegmentWorker

TOKEN = b"a join token of at least 32 bytes, for tests"


class Asked:
    """A worker that answers as a test says, and a clock."""

    def __init__(self) -> None:
        self.holder = SegmentWorker(JoinToken(TOKEN), 0)
        gate = HandshakeServer(JoinToken(TOKEN))
        challenge = gate.challenge()
        admitted = gate.admit(challenge, self.holder.apply(challenge))
        self.name, self.session, self.welcome = b"worker", admitted.session, admitted.welcome
        self.asked: list[Future[bytes]] = []
        self.questions: list[bytes] = []
        self.answers: Callable[[bytes], bytes] | None = self.holder.alive
        self.now = 100.0
        self.pulses = Heartbeats(lambda: self.now)

    def alive(self, sealed: bytes) -> "Future[bytes]":
        future: Future[bytes] = Future()
        self.asked.append(future)
        self.questions.append(sealed)
        if self.answers is not None:
            future.set_result(self.answers(sealed))
        return future

    def is_silent_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.pulses.is_silent(self)

    def was_ever_silent(self, seconds: float) -> bool:
        return any(self.is_silent_after(0.5) for _ in range(int(seconds * 2)))


@pytest.fixture
def worker() -> Asked:
    made = Asked()
    made.holder.welcome(made.welcome)
    return made


def test_a_worker_that_answers_is_never_silent_however_long_its_order_takes(worker: Asked) -> None:
    assert not worker.was_ever_silent(3600)
    assert 3600 / ASK_EVERY_S * 0.7 <= len(worker.asked) <= 3600 / ASK_EVERY_S


def test_a_worker_that_was_idle_for_long_is_asked_before_it_is_silent(worker: Asked) -> None:
    worker.answers = None
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(1e6)
    assert not worker.was_ever_silent(SILENT_S - 1)
    assert worker.was_ever_silent(1)
    assert len(worker.asked) == 1
    assert worker.is_silent_after(1e6)  # also to another round that waits for it


def test_a_late_answer_or_another_word_of_a_worker_ends_its_silence(worker: Asked) -> None:
    worker.answers = None
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(ASK_EVERY_S)
    worker.asked[0].set_result(worker.holder.alive(worker.questions[0]))
    assert not worker.is_silent_after(SILENT_S + 1)  # heard, and asked again at once
    assert not worker.was_ever_silent(SILENT_S - 1)
    worker.pulses.heard(worker)
    assert not worker.is_silent_after(1)
    assert not worker.is_silent_after(ASK_EVERY_S)
    assert worker.was_ever_silent(SILENT_S)
    assert len(worker.asked) == 3


@pytest.mark.parametrize("answer", [b"", bytes(40)])
def test_an_answer_that_is_not_the_workers_own_leaves_the_question_open(worker: Asked, answer: bytes) -> None:
    worker.answers = lambda _: answer
    assert worker.was_ever_silent(ASK_EVERY_S + SILENT_S + 1)
    assert SILENT_S / ASK_EVERY_S / 2 <= len(worker.asked) <= SILENT_S / ASK_EVERY_S + 1


def test_an_answer_to_an_earlier_question_is_none(worker: Asked) -> None:
    assert not worker.was_ever_silent(2 * ASK_EVERY_S)
    earlier = worker.holder.alive(worker.questions[0])
    worker.answers = lambda _: earlier
    assert worker.was_ever_silent(ASK_EVERY_S + SILENT_S + 1)


def test_a_question_that_failed_leaves_the_worker_the_same_time(worker: Asked) -> None:
    worker.answers = None
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(ASK_EVERY_S)
    worker.asked[0].set_exception(WorkerLost())
    assert not worker.is_silent_after(ASK_EVERY_S)
    assert len(worker.asked) == 2
    assert worker.was_ever_silent(SILENT_S - ASK_EVERY_S)


def test_a_worker_that_has_not_read_its_welcome_yet_is_not_silent() -> None:
    worker = Asked()
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(ASK_EVERY_S)
    worker.holder.welcome(worker.welcome)
    assert not worker.was_ever_silent(2 * SILENT_S)


def test_what_the_head_did_not_see_for_it_stood_still_itself_is_no_silence(worker: Asked) -> None:
    worker.answers = None
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(ASK_EVERY_S)
    assert not worker.is_silent_after(3600)  # and the answer waits behind this look
    worker.asked[0].set_result(worker.holder.alive(worker.questions[0]))
    worker.answers = worker.holder.alive
    assert not worker.was_ever_silent(2 * SILENT_S)


def test_a_question_that_an_earlier_round_left_behind_does_not_end_a_worker() -> None:
    worker = Asked()
    assert not worker.is_silent_after(0)
    assert not worker.is_silent_after(ASK_EVERY_S)  # before it has read its welcome; then the round is left
    worker.holder.welcome(worker.welcome)
    assert not worker.is_silent_after(3600)
    assert not worker.was_ever_silent(2 * SILENT_S)


def test_workers_that_are_gone_are_forgotten(worker: Asked) -> None:
    worker.pulses.heard(worker)
    worker.pulses.forget_all_but({worker.name})
    assert worker.pulses._pulses
    worker.pulses.forget_all_but(set())
    assert not worker.pulses._pulses


def test_what_the_head_did_not_ask_gets_no_answer(worker: Asked) -> None:
    assert worker.holder.alive(bytes(40)) == b""
    assert worker.holder.alive(Session(bytes(32), bytes(32)).seal(b"", b"alive")) == b""

"""A worker that has the token, and answers something else than it was asked, is given up with its machine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helper.datasets import segments
from helper.executors.dispatch import MOST_UNDONE
from helper.executors.orders import Done, OrderMessage, Totals, read, write
from maskedlark.canonical import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import never
from tests.helper.executors.clustered_site import Site, sampled, scoring_of
from tests.helper.executors.in_process import ThreadWorker


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    with Site(tmp_path) as made:
        yield made


Spoil = Callable[[OrderMessage], bytes]


@canonical
class Totalled:
    """A message of a kind that there is not."""

    hashes: int


@canonical
class Said:
    """What a worker may say that could not do its order, if nobody looks at the reason."""

    reason: str


def _sum(change: Callable[[list[bytes]], list[bytes]], done: tuple[int, ...] = (0,)) -> Spoil:
    """An answer to one segment with other parts, or of other segments."""
    return lambda message: write(Done(done=done), change(list(message.parts)))


TOTALS = Totals(hashes=1, records=0).encoded
WRONG_ANSWERS: dict[str, Spoil] = {
    "nothing": lambda _: b"",
    "no message": lambda _: b"\xff" * 40,
    "another kind": lambda _: write(Totalled(hashes=1)),
    "of no segment, though it came along": _sum(lambda parts: parts, done=()),
    "of a segment that was not asked": _sum(lambda parts: parts, done=(1,)),
    "of a segment twice": _sum(lambda parts: parts, done=(0, 0)),
    "of a segment that is a million": _sum(lambda parts: parts, done=(1 << 60,)),
    "no parts": _sum(lambda _: []),
    "one part": _sum(lambda parts: parts[:1]),
    "a part more": _sum(lambda parts: [*parts, b""]),
    "a shorter sum": _sum(lambda parts: [parts[0][:-8], parts[1]]),
    "a longer sum": _sum(lambda parts: [parts[0] + bytes(8), parts[1]]),
    "a sum that is cut within a value": _sum(lambda parts: [parts[0][:-1], parts[1]]),
    "a sum outside the field": _sum(lambda parts: [b"\xff" * len(parts[0]), parts[1]]),
    "totals that are cut": _sum(lambda parts: [parts[0], parts[1][:-1]]),
    "totals that are longer": _sum(lambda parts: [parts[0], parts[1] + bytes(8)]),
    "fewer records": _sum(lambda parts: [parts[0], TOTALS]),
    "failed without a reason": lambda _: b"\0" * 8,
    "failed with a line for the log": lambda _: write(Said(reason="x\n1999 a worker of Ray node 5 joined")),
    "failed with the end of a line": lambda _: write(Said(reason="ValueError\n")),
}


def spoil_worker(site: Site, monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> ThreadWorker:
    """Another worker, which has the token and answers each order wrongly."""
    before = len(site.fleet.joined)
    site.fleet.add(1)
    worker = list(site.fleet.joined.values())[before]
    answer = worker.holder._answer
    monkeypatch.setattr(worker.holder, "_answer", lambda *given: spoil(read(Done, answer(*given))))
    return worker


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_that_answers_wrongly_is_given_up_and_the_round_goes_on(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    others: int,
) -> None:
    site.fleet.add(others)
    worker = spoil_worker(site, monkeypatch, WRONG_ANSWERS[wrong])
    site.assert_equal(1.0)
    assert site.fleet.refused == [worker.name]
    assert len(site.fleet.joined) == others
    assert "answers something else than its order asks for" in caplog.text
    assert "joined" not in caplog.text
    site.assert_equal(1.0, seed=4)


def test_two_workers_that_answer_wrongly_end_a_rounds_way_to_workers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        spoil_worker(site, monkeypatch, WRONG_ANSWERS["a shorter sum"])
    site.assert_equal()
    assert len(site.fleet.refused) == MOST_UNDONE
    assert len(site.fleet.joined) == 4 - MOST_UNDONE


def test_a_worker_that_is_wrong_about_what_it_holds_is_sent_that_again_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fleet.add(1)
    site.assert_equal()  # it holds all segments
    (worker,) = site.fleet.joined.values()
    monkeypatch.setattr(worker.holder, "_answer", lambda *_: write(Done(done=())))
    site.assert_equal(seed=4)
    assert site.fleet.refused == [worker.name]
    assert site.fleet.ended == [worker]


def test_what_a_worker_refuses_is_decided_here_logged_and_costs_no_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.fleet.add(2)

    def refuse(*_: object) -> bytes:
        raise JobRefused(JobReason.MALFORMED, "what a worker would have the ad server read")

    for worker in site.fleet.joined.values():
        monkeypatch.setattr(worker.holder, "_answer", refuse)
    site.assert_equal()
    assert "a worker of the cluster refuses an order" in caplog.text
    assert not site.fleet.ended
    passed = b"".join(part for worker in site.fleet.joined.values() for part in worker.passed)
    assert passed
    monkeypatch.setattr(site.local, "masked_sum", refuse)
    with pytest.raises(JobRefused) as refused:
        site.cluster.masked_sum(site.gradient, site.records, sampled(1.0), never)
    assert refused.value.reason is JobReason.MALFORMED


WRONG_SCORES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "none": lambda _: [],
    "a part less": lambda parts: parts[:-1],
    "a bin less": lambda parts: [parts[0][:-8], *parts[1:]],
    "half a bin": lambda parts: [parts[0][:-3], *parts[1:]],
    "a bin more": lambda parts: [parts[0] + bytes(8), *parts[1:]],
    "a bin below zero": lambda parts: [b"\xff" * 8 + parts[0][8:], *parts[1:]],
    "a bin that there is not": lambda parts: [b"\x0a" + bytes(7) + parts[0][8:], *parts[1:]],
    "a class less": lambda parts: [parts[0], parts[1][:-8], *parts[2:]],
    "a class below zero": lambda parts: [parts[0], b"\xff" * 8 + parts[1][8:], *parts[2:]],
    "a class that there is not": lambda parts: [parts[0], b"\x03" + bytes(7) + parts[1][8:], *parts[2:]],
}


@pytest.mark.parametrize("wrong", WRONG_SCORES)
def test_a_worker_whose_scores_are_none_is_given_up_and_others_score(
    site: Site, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    site.fleet.add(2)
    worker = spoil_worker(
        site, monkeypatch, lambda message: write(message.head, WRONG_SCORES[wrong](list(message.parts)))
    )
    scoring = scoring_of(outputs=3)
    local, clustered = (one.scan(scoring, site.records, never) for one in (site.local, site.cluster))
    assert site.fleet.refused == [worker.name]
    assert clustered.bins.tolist() == local.bins.tolist()
    assert clustered.choices is not None
    assert local.choices is not None
    assert clustered.choices.tolist() == local.choices.tolist()

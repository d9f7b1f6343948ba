"""Workers that open shares find what this machine finds, whatever is sent and whichever of them is lost."""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Semaphore
from typing import Any

import numpy as np
import pytest

from helper.executors import clustered, opening_orders
from helper.executors.clustered import ClusterExecutor
from helper.executors.dispatch import PartsToSend
from helper.executors.fleet import Sent, WorkerLost
from helper.executors.local import LocalExecutor
from helper.executors.opening_orders import OpeningWork, write_opened
from helper.executors.orders import Done, Failed, Order, read, write
from helper.executors.processes import MAX_CHUNK
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import MODULUS
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.sealing import OpeningKey, SealingKey, share_info
from maskedlark.reports.upload import SealedShare
from tests.builders import NOW, World, examples, reports, shares_for, world
from tests.helper.executors.in_process import Fails, ThreadFleet, ThreadWorker
from tests.helper.parties import NO_WORKERS, Scene
from tests.measured import SHOP
from tests.patience import HANGS_S

HONEST = 21
PART = 5
PLAIN = world()
WORLDS = [
    pytest.param(PLAIN, id="labels"),
    pytest.param(world(suite=HpkeSuite.MLKEM768_X25519_AES128GCM), id="hybrid keys"),
    pytest.param(world(measurement=SHOP, min_batch_size=1), id="measurement"),
    pytest.param(world(measurement=SHOP, min_batch_size=1, proof=True), id="proofs"),
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustered, "MIN_CHUNK", 2)
    monkeypatch.setattr(opening_orders, "MAX_CHUNK", PART)


@pytest.fixture
def fleet() -> Iterator[ThreadFleet]:
    made = ThreadFleet()
    yield made
    made.close()


def cluster_of(fleet: ThreadFleet) -> ClusterExecutor:
    return ClusterExecutor(fleet, LocalExecutor(NO_WORKERS), opens_shares=True)


def honest(of: World, role: int = 0) -> list[ShareForHelper]:
    given = examples(of.task, HONEST)
    if of.task.measurement is not None:
        measured = MeasuredValues(keys=(7, 2, 3), values=(1, 42))
        given = [Example(features=one.features, label=one.label, measured=measured) for one in given]
    return shares_for(reports(of, given), role)


def resealed(of: World, one: ShareForHelper, change: Callable[[bytearray], None]) -> ShareForHelper:
    """A share whose plaintext its browser chose itself."""
    key, task = of.keys[0].opening, of.task
    info = share_info(
        task_id=task.task_id,
        report_id=one.report_id,
        time_bucket=task.time_bucket(NOW),
        role=0,
        key_id=key.key_id,
    )
    plaintext = bytearray(key.open(one.share.ciphertext, info))
    change(plaintext)
    ciphertext = SealingKey(key.public()).seal(bytes(plaintext), info)
    return replace(one, share=SealedShare(key_id=key.key_id, ciphertext=ciphertext))


def hostile(of: World) -> list[ShareForHelper]:
    """Honest shares, and between them each kind that is dropped."""
    good = honest(of)
    a, share = good[0], good[0].share

    def labels_of_nobody(plaintext: bytearray) -> None:
        plaintext[of.task.view_length - 1] ^= 0xFF

    def masks_too_large(plaintext: bytearray) -> None:
        plaintext[-8:] = b"\xff" * 8

    bad = [
        replace(
            a, share=replace(share, ciphertext=share.ciphertext[:-1] + bytes([share.ciphertext[-1] ^ 1]))
        ),
        replace(a, share=replace(share, ciphertext=share.ciphertext[:-1])),
        replace(a, share=replace(share, ciphertext=b"")),
        replace(a, share=replace(share, ciphertext=share.ciphertext + bytes(5))),
        replace(a, share=replace(share, key_id=77)),
        replace(a, share=replace(share, key_id=(1 << 32) - 1)),
        replace(a, report_id=good[1].report_id),
        replace(a, report_id=bytes(3)),
        replace(a, report_id=b""),
        replace(a, time_bucket=(1 << 64) - 1),
        replace(a, time_bucket=1),
        resealed(of, good[2], labels_of_nobody),
        resealed(of, good[3], masks_too_large),
        resealed(of, good[4], lambda plaintext: plaintext.extend(b"x")),
        resealed(of, good[5], lambda plaintext: plaintext.__setitem__(0, 9)),
    ]
    mixed = [*bad[:4], *good[6:10], *bad[4:], *good[10:]]
    return [mixed[place] for place in np.random.default_rng(1).permutation(len(mixed)).tolist()]


def sent_of(shares: list[ShareForHelper]) -> PartsToSend:
    return OpeningWork(opener=PLAIN.opener(0), parts=[shares], opened={}).order([0], is_sent=False)


def order_of(shares: list[ShareForHelper]) -> bytes:
    sent = sent_of(shares)
    return write(Order(work=sent.kind), [*sent.parts, sent.frames])


def taken(answer: Sequence[bytes], opener: ShareOpener, shares: list[ShareForHelper]) -> PreparedShares:
    work = OpeningWork(opener=opener, parts=[shares], opened={})
    work.take([0], answer)
    return work.opened[0]


def parts_of(prepared: PreparedShares) -> tuple[bytes, ...]:
    return read(Done, write_opened(prepared)).parts


def assert_same(found: PreparedShares, expected: PreparedShares) -> None:
    assert found.report_ids.tobytes() == expected.report_ids.tobytes()
    assert found.admitted.is_admitted.tolist() == expected.admitted.is_admitted.tolist()
    assert found.admitted.view_tags.tobytes() == expected.admitted.view_tags.tobytes()
    assert found.admitted.dropped == expected.admitted.dropped
    for name in ("features", "labels", "mask_shares"):
        ours, theirs = getattr(found.shares, name), getattr(expected.shares, name)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    assert (found.shares.measured is None) == (expected.shares.measured is None)
    if found.shares.measured is not None and expected.shares.measured is not None:
        assert found.shares.measured.keys.tobytes() == expected.shares.measured.keys.tobytes()
        assert found.shares.measured.value_shares.tobytes() == expected.shares.measured.value_shares.tobytes()


@pytest.mark.parametrize("of", WORLDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_open_what_this_machine_opens_to_the_bit(of: World, fleet: ThreadFleet, workers: int) -> None:
    fleet.add(workers)
    incoming, opener = hostile(of), of.opener(0)
    expected = opener.open(incoming)
    assert len(expected.admitted.dropped) >= 7
    assert_same(cluster_of(fleet).open(opener, incoming), expected)
    assert_same(cluster_of(fleet).open(opener, honest(of)), opener.open(honest(of)))
    assert all(worker.passed for worker in fleet.joined.values())


def test_chunks_that_are_opened_at_once_are_shared_out_evenly(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, may_answer, opens = Semaphore(0), Semaphore(0), ThreadWorker.do

    def told(worker: ThreadWorker, order: bytes, **how: Any) -> Sent:
        answer = opens(worker, order, **how)
        sent.release()
        return answer

    monkeypatch.setattr(ThreadWorker, "do", told)
    fleet.add(
        3, fails=lambda: None if may_answer.acquire(timeout=HANGS_S) else pytest.fail("not all are sent")
    )
    cluster, opener, chunk = cluster_of(fleet), PLAIN.opener(0), honest(PLAIN)[:PART]
    workers, at_once = list(fleet.joined.values()), cluster.opens_at_once()
    with ThreadPoolExecutor(at_once) as callers:
        for _ in range(2):
            opened = [callers.submit(cluster.open, opener, chunk) for _ in range(at_once)]
            for _ in opened:
                assert sent.acquire(timeout=HANGS_S)
            shared_out = [len(worker.passed) for worker in workers]
            may_answer.release(at_once)
            assert shared_out == [2, 2, 2]
            for one in opened:
                assert_same(one.result(), opener.open(chunk))
            for worker in workers:
                worker.passed.clear()


def test_an_order_that_failed_or_was_answered_keeps_later_ones_from_no_worker(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.add(2)
    monkeypatch.setattr(fleet, "drop", lambda _: None)  # as if it had joined again
    cluster, opener, chunk = cluster_of(fleet), PLAIN.opener(0), honest(PLAIN)[:PART]
    first, opens = fleet.joined[b"worker 0"], ThreadWorker.do

    def fails_once(worker: ThreadWorker, *_: Any, **__: Any) -> Sent:
        monkeypatch.setattr(ThreadWorker, "do", opens)
        assert worker is first
        answer: Future[bytes] = Future()
        answer.set_exception(WorkerLost())
        return Sent(answer=answer)

    monkeypatch.setattr(ThreadWorker, "do", fails_once)
    for _ in range(3):
        assert_same(cluster.open(opener, chunk), opener.open(chunk))
    assert first.passed
    assert not fleet.joined[b"worker 1"].passed  # the first of those that have nothing


def refuse(*_: object, **__: object) -> Sent:
    answer: Future[bytes] = Future()
    answer.set_result(write(Failed(reason="refused")))
    return Sent(answer=answer)


def test_an_order_that_is_not_awaited_any_more_keeps_later_ones_from_no_worker(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = Event()
    fleet.add(1)
    fleet.add(1, fails=goes_on.wait)
    cluster, opener, (first, second) = cluster_of(fleet), PLAIN.opener(0), fleet.joined.values()
    two_parts = honest(PLAIN)[: 2 * PART]
    with monkeypatch.context() as patched:
        patched.setattr(first, "do", refuse)
        assert_same(cluster.open(opener, two_parts), opener.open(two_parts))
    goes_on.set()
    assert_same(cluster.open(opener, two_parts), opener.open(two_parts))
    assert first.passed
    assert len(second.passed) == 4  # the order that was left and the next one, each with its answer


def test_what_no_worker_opens_is_opened_here_no_more_at_once_than_this_machine_takes(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.add(4)
    cluster, opener, chunk = cluster_of(fleet), PLAIN.opener(0), honest(PLAIN)[:PART]
    here, most, open_here = list[None](), list[int](), LocalExecutor.open
    at_once = LocalExecutor(NO_WORKERS).opens_at_once()
    meet = Barrier(at_once)

    def counted(local: LocalExecutor, *what: Any) -> PreparedShares:
        here.append(None)
        meet.wait(HANGS_S)  # as many as may be here, and all others that come in spite of it
        most.append(len(here))
        meet.wait(HANGS_S)
        here.pop()
        return open_here(local, *what)

    monkeypatch.setattr(LocalExecutor, "open", counted)
    monkeypatch.setattr(ThreadWorker, "do", refuse)
    with ThreadPoolExecutor(cluster.opens_at_once()) as callers:
        for one in callers.map(cluster.open, [opener] * 40, [chunk] * 40):
            assert one.admitted.is_admitted.all()
    assert most == [at_once] * 40


def test_a_cluster_is_given_as_many_chunks_as_its_workers_can_have(fleet: ThreadFleet) -> None:
    cluster = cluster_of(fleet)
    assert cluster.opens_at_once() == LocalExecutor(NO_WORKERS).opens_at_once()
    fleet.add(4)
    assert cluster.opens_at_once() == 8
    assert ClusterExecutor(fleet, LocalExecutor(NO_WORKERS)).opens_at_once() == 2


def test_another_tasks_shares_are_opened_with_its_keys(fleet: ThreadFleet) -> None:
    fleet.add(1)
    cluster = cluster_of(fleet)
    for of in (PLAIN, world(), PLAIN):
        assert_same(cluster.open(of.opener(1), honest(of, 1)), of.opener(1).open(honest(of, 1)))


@pytest.mark.parametrize("at", range(1, 7))
def test_a_lost_workers_shares_are_opened_by_others(fleet: ThreadFleet, at: int) -> None:
    fails = Fails(at)
    fleet.add(1)
    fleet.add(1, fails=fails)
    assert_same(cluster_of(fleet).open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    assert len(fleet.joined) == 2 - (fails.calls >= at)


def test_a_head_whose_workers_are_all_lost_opens_itself(fleet: ThreadFleet) -> None:
    fleet.add(2, fails=Fails())
    cluster = cluster_of(fleet)
    for _ in range(2):
        assert_same(cluster.open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    assert not fleet.joined


def test_shares_that_no_worker_can_open_cost_two_of_them(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.add(5)
    monkeypatch.setattr("helper.executors.worker.write_opened", lambda _: 1 // 0)
    assert_same(cluster_of(fleet).open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    assert len(fleet.ended) == 2


def test_one_worker_that_cannot_open_shares_says_so_and_leaves_them_to_others(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[bytes] = []
    has_failed_twice = Event()
    fleet.add(1)
    fleet.add(
        1, fails=lambda: None if has_failed_twice.wait(HANGS_S) else pytest.fail("worker 0 has two parts")
    )
    broken = fleet.joined[b"worker 0"].holder

    def fails(order: bytes, _: Interrupt) -> bytes:
        failed.append(order)
        if len(failed) == 2:
            has_failed_twice.set()
        return write(Failed(reason="MemoryError"))

    monkeypatch.setattr(broken, "do", fails)
    monkeypatch.setattr(LocalExecutor, "open", lambda *_: pytest.fail("a worker can do it"))
    assert_same(cluster_of(fleet).open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    assert set(fleet.joined) == {b"worker 1"}
    assert not fleet.refused
    assert "could not do an order: MemoryError" in caplog.text


@pytest.mark.parametrize("answer", [b"", b"\xff" * 40, write(Done(done=())), write(Done(done=(0,)))])
def test_a_worker_that_answers_wrongly_is_given_up_with_its_machine(
    fleet: ThreadFleet, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    answered = Event()
    fleet.add(1)
    fleet.add(1, fails=lambda: None if answered.wait(HANGS_S) else pytest.fail("worker 0 has a part"))
    wrong = fleet.joined[b"worker 0"].holder

    def answers(*_: object) -> bytes:
        answered.set()
        return answer

    monkeypatch.setattr(wrong, "do", answers)
    assert_same(cluster_of(fleet).open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    assert set(fleet.refused) == {b"worker 0"}  # once or twice: it may have answered both of its parts
    assert set(fleet.joined) == {b"worker 1"}


def test_parts_of_a_worker_that_another_preparation_found_lost_are_not_awaited(fleet: ThreadFleet) -> None:
    goes_on = Event()
    fleet.add(1, fails=goes_on.wait)
    fleet.add(1, fails=lambda: fleet.drop(b"worker 0"))
    assert_same(cluster_of(fleet).open(PLAIN.opener(0), hostile(PLAIN)), PLAIN.opener(0).open(hostile(PLAIN)))
    goes_on.set()


@pytest.mark.parametrize(
    ("shares", "part"),
    [(128, 128), (MAX_CHUNK, MAX_CHUNK), (MAX_CHUNK + 2, MAX_CHUNK // 2 + 1), (3000, 1000)],
)
def test_shares_are_cut_evenly(monkeypatch: pytest.MonkeyPatch, shares: int, part: int) -> None:
    monkeypatch.setattr(opening_orders, "MAX_CHUNK", MAX_CHUNK)
    share = SealedShare(key_id=0, ciphertext=bytes(129))
    incoming = [ShareForHelper(report_id=bytes(16), time_bucket=0, share=share)] * shares
    assert {len(one) for one in OpeningWork.of(PLAIN.opener(0), incoming).parts} == {part}


def test_a_worker_keeps_no_key_once_an_order_is_done(fleet: ThreadFleet) -> None:
    fleet.add(1)
    (worker,) = fleet.joined.values()

    def keys() -> int:
        gc.collect()
        return sum(type(one) is OpeningKey for one in gc.get_objects())

    before = keys()
    worker.holder.do(order_of(honest(PLAIN)))
    assert keys() == before


def test_workers_get_no_keys_unless_they_open_shares(fleet: ThreadFleet) -> None:
    fleet.add(2)
    cluster = ClusterExecutor(fleet, LocalExecutor(NO_WORKERS))
    assert_same(cluster.open(PLAIN.opener(0), honest(PLAIN)), PLAIN.opener(0).open(honest(PLAIN)))
    assert not any(worker.passed for worker in fleet.joined.values())


def test_the_dataset_and_the_reasons_are_those_of_a_helper_without_workers(
    tmp_path: Path, fleet: ThreadFleet
) -> None:
    fleet.add(2)
    scene = Scene(tmp_path)
    sent = scene.reports(30)
    sent[7:7] = sent[3:5]  # twice in one part
    sent += sent[:3]  # and far from the first time
    sent[11] = replace(sent[11], shares=(sent[12].shares[0], sent[11].shares[1]))
    alone = scene.prepare(sent, handle=b"1" * 16)
    object.__setattr__(scene.cores[0].datasets, "open_shares", cluster_of(fleet).open)
    shared = scene.prepare(sent, handle=b"2" * 16)
    assert shared.admitted[0].dropped == alone.admitted[0].dropped
    assert shared.admitted[0].dropped[ReportReason.DUPLICATE_ID] == 5
    assert shared.admitted[0].view_tags.tobytes() == alone.admitted[0].view_tags.tobytes()
    assert shared.dataset_id == alone.dataset_id
    assert scene.commit(shared) == alone.dataset_id
    assert any(worker.passed for worker in fleet.joined.values())


def test_how_long_an_answer_is_does_not_tell_what_was_found() -> None:
    good, opener = honest(PLAIN), PLAIN.opener(0)
    broken = [replace(one, share=good[0].share) for one in good]
    lengths = {len(write_opened(opener.open(some))) for some in (good, broken, hostile(PLAIN)[: len(good)])}
    assert len(lengths) == 1


OPENED = PLAIN.opener(0).open(hostile(PLAIN))
ADMITTED = int(np.flatnonzero(OPENED.admitted.is_admitted)[0])
DROPPED = int(np.flatnonzero(~OPENED.admitted.is_admitted)[0])


def with_admitted(prepared: PreparedShares, row: int) -> PreparedShares:
    changed = prepared.admitted.is_admitted.copy()
    changed[row] = ~changed[row]
    return replace(prepared, admitted=replace(prepared.admitted, is_admitted=changed))


def with_mask(prepared: PreparedShares, value: int) -> PreparedShares:
    masks = prepared.shares.mask_shares.copy()
    masks[ADMITTED, 1] = value
    return replace(prepared, shares=replace(prepared.shares, mask_shares=masks))


def with_tag(prepared: PreparedShares, row: int) -> PreparedShares:
    tags = prepared.admitted.view_tags.copy()
    tags[row] = 7
    return replace(prepared, admitted=replace(prepared.admitted, view_tags=tags))


def with_label(prepared: PreparedShares, label: int) -> PreparedShares:
    labels = prepared.shares.labels.copy()
    labels[ADMITTED, 1] = label
    return replace(prepared, shares=replace(prepared.shares, labels=labels))


def of_another_task() -> PreparedShares:
    other = world(num_features=5)
    return other.opener(0).open([replace(one, share=honest(other)[0].share) for one in hostile(PLAIN)])


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda: with_admitted(OPENED, DROPPED), id="one more admitted than not dropped"),
        pytest.param(lambda: with_admitted(OPENED, ADMITTED), id="one less"),
        pytest.param(lambda: with_mask(OPENED, MODULUS), id="a mask that is no element of the field"),
        pytest.param(lambda: with_label(OPENED, 1 << 31), id="a label that the task has not"),
        pytest.param(lambda: with_label(OPENED, OPENED.shares.labels[ADMITTED, 0]), id="a label twice"),
        pytest.param(lambda: with_tag(OPENED, DROPPED), id="a tag of a share that was dropped"),
        pytest.param(of_another_task, id="of another shape"),
        pytest.param(lambda: PLAIN.opener(0).open(hostile(PLAIN)[:-1]), id="not of all shares"),
    ],
)
def test_an_answer_that_opening_does_not_give_is_refused(lie: Callable[[], PreparedShares]) -> None:
    incoming, opener = hostile(PLAIN), PLAIN.opener(0)
    assert_same(taken(parts_of(OPENED), opener, incoming), OPENED)
    with pytest.raises(InvalidTask, match="answer"):
        taken(parts_of(lie()), opener, incoming)


def test_an_answer_with_a_key_that_the_task_has_not_is_refused() -> None:
    of = world(measurement=SHOP, min_batch_size=1)
    incoming, opener = honest(of), of.opener(0)
    prepared = opener.open(incoming)
    assert prepared.shares.measured is not None
    prepared.shares.measured.keys[3, 1] = 3  # of a key of three categories
    with pytest.raises(InvalidTask, match="answer"):
        taken(parts_of(prepared), opener, incoming)


def test_an_order_of_nonsense_is_told_in_one_word(fleet: ThreadFleet) -> None:
    fleet.add(1)
    (worker,) = fleet.joined.values()
    sent = sent_of(honest(PLAIN))
    answer = worker.holder.do(write(Order(work=sent.kind), [b"nonsense", *sent.parts[1:], b""]))
    assert re.search(rb'"reason":"InvalidTask"', answer)
    assert b"nonsense" not in answer

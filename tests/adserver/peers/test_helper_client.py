"""The client of a helper: typed answers, nothing believed, an end to every call."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from adserver.peers.client import HelperClient
from adserver.peers.retrying import Backoff, with_retries
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused, ReportReason
from maskedlark.model.losses import Loss
from maskedlark.numbers.field import random_vector
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.sealing import verify
from protos import helper_pb2
from tests.adserver.fake_helper import NUMERICS, FakeHelper, serving
from tests.builders import World, examples, reports, shares_for, world
from tests.patience import HANGS_S

_FAST = Backoff(first_s=0.001, longest_s=0.01)


@pytest.fixture(scope="module")
def known() -> World:
    return world()


def _fake(known: World) -> FakeHelper:
    return FakeHelper(role=0, keys=known.keys[0], registered={known.task.task_id: known.task})


def _shares(known: World, count: int) -> list[ShareForHelper]:
    return shares_for(reports(known, examples(known.task, count)), 0)


def _chunks(shares: Sequence[ShareForHelper], size: int) -> list[Sequence[ShareForHelper]]:
    return [shares[start : start + size] for start in range(0, len(shares), size)]


def test_a_helper_is_known_by_its_signed_keys_and_signs_a_task(known: World) -> None:
    with serving(_fake(known)) as (client,):
        status = client.status()
        signature = client.register_task(known.task)
    assert status.identity == known.keys[0].identity("helper 0")
    assert status.keys.verify(status.identity.verify_key) == known.keys[0].opening.public()
    assert status.software_digest == NUMERICS
    verify(status.identity.verify_key, known.task.signing_bytes(), signature)


def test_a_helper_that_refuses_a_task_is_heard_with_its_own_words(known: World) -> None:
    def floor(_: object) -> None:
        raise InvalidTask("min_batch_size is under this helper's floor of 100")

    fake = _fake(known)
    fake.floor = floor
    with (
        serving(fake) as (client,),
        pytest.raises(InvalidTask, match=r"^helper at 127\.0\.0\.1:\d+: .*floor of 100"),
    ):
        client.register_task(known.task)


def test_chunks_of_any_size_are_put_together_in_order_with_progress(known: World) -> None:
    shares = _shares(known, 23)
    shares[5] = ShareForHelper(
        report_id=shares[5].report_id, time_bucket=shares[5].time_bucket, share=shares[6].share
    )
    seen: list[int] = []
    with serving(_fake(known)) as (client,):
        admitted = client.prepare_dataset(
            known.task.task_id, bytes(16), _chunks(shares, 7), num_reports=23, progress=seen.append
        )
    whole = known.opener(0).open(shares).admitted
    assert (admitted.is_admitted == whole.is_admitted).all()
    assert (admitted.view_tags == whole.view_tags).all()
    assert admitted.dropped == whole.dropped == {ReportReason.NOT_OPENED: 1}
    assert [count for count in seen if count] == [7, 7, 7, 2]


def test_an_error_of_whoever_supplies_the_shares_is_raised_as_it_is(known: World) -> None:
    def breaking() -> Iterator[list[ShareForHelper]]:
        yield _shares(known, 2)
        raise JobRefused(JobReason.CANCELLED, "enough")

    with serving(_fake(known)) as (client,), pytest.raises(JobRefused, match="enough"):
        client.prepare_dataset(known.task.task_id, bytes(16), breaking(), num_reports=2)


def _short_flags(reply: Any) -> Any:
    if reply.is_admitted:
        reply.is_admitted = reply.is_admitted[:-1]
    return reply


def _wrong_flag(reply: Any) -> Any:
    if reply.is_admitted:
        reply.is_admitted = b"\x02" + reply.is_admitted[1:]
    return reply


def _short_tags(reply: Any) -> Any:
    if reply.is_admitted:
        reply.view_tags = reply.view_tags[:-1]
    return reply


def _no_totals(reply: Any) -> Any:
    return helper_pb2.PrepareReply() if reply.HasField("totals") else reply


def _early_totals(reply: Any) -> Any:
    return helper_pb2.PrepareReply(totals=helper_pb2.PrepareReply.Totals(received=3, admitted=3))


def _wrong_totals(reply: Any) -> Any:
    if reply.HasField("totals"):
        reply.totals.admitted += 1
    return reply


def _unknown_reason(reply: Any) -> Any:
    if reply.HasField("totals"):
        reply.totals.dropped["bad mood"] = 0
    return reply


@pytest.mark.parametrize(
    "spoil",
    [_short_flags, _wrong_flag, _short_tags, _no_totals, _early_totals, _wrong_totals, _unknown_reason],
)
def test_a_preparation_answered_with_nonsense_is_a_bad_answer(
    known: World, spoil: Callable[[Any], Any]
) -> None:
    fake = _fake(known)
    fake.spoil = spoil
    with serving(fake) as (client,), pytest.raises(JobRefused) as refusal:
        client.prepare_dataset(known.task.task_id, bytes(16), _chunks(_shares(known, 4), 2), num_reports=4)
    assert refusal.value.reason is JobReason.BAD_ANSWER


def _change(**fields: Any) -> Callable[[Any], Any]:
    def spoil(reply: Any) -> Any:
        for name, value in fields.items():
            setattr(reply, name, value)
        return reply

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        _change(verify_key=bytes(32)),
        _change(key_list=b"{}"),
        _change(agreement_key=bytes(31)),
        _change(name=""),
    ],
)
def test_a_status_that_makes_no_sense_is_a_bad_answer(known: World, spoil: Callable[[Any], Any]) -> None:
    fake = _fake(known)
    fake.spoil = spoil
    _assert_bad_answer(fake, lambda client: client.status())


def test_a_signature_of_another_length_is_a_bad_answer(known: World) -> None:
    fake = _fake(known)
    fake.spoil = _change(signature=b"yes")
    _assert_bad_answer(fake, lambda client: client.register_task(known.task))


@pytest.mark.parametrize(
    "spoil",
    [
        _change(path="magic"),
        _change(numerics_digest=b""),
        _change(num_parameters=0),
        _change(epsilon_spent=float("nan")),
        _change(collusion_epsilon_spent=-1.0),
    ],
)
def test_a_started_job_that_makes_no_sense_is_a_bad_answer(known: World, spoil: Callable[[Any], Any]) -> None:
    fake = _fake(known)
    fake.spoil = spoil
    _assert_bad_answer(fake, lambda client: client.start_job(_job(known), b"model"))


@pytest.mark.parametrize("spoil", [_change(dataset_id=bytes(32)), _change(size=1)])
def test_a_commit_of_another_dataset_is_a_bad_answer(known: World, spoil: Callable[[Any], Any]) -> None:
    fake = _fake(known)
    datasets = known.datasets(reports(known, examples(known.task, 3)))
    shares = _shares(known, 3)
    with serving(fake) as (client,):
        client.prepare_dataset(known.task.task_id, bytes(16), [shares], num_reports=3)
        fake.spoil = spoil
        with pytest.raises(JobRefused) as refusal:
            client.commit_dataset(known.task.task_id, bytes(16), np.ones(3, np.bool_), datasets[0].dataset_id)
    assert refusal.value.reason is JobReason.BAD_ANSWER


def test_a_model_of_several_messages_arrives_whole(known: World) -> None:
    with serving(_fake(known)) as (client,):
        started = client.start_job(_job(known), bytes(3_000_000))
        closed = client.close_job(_job(known))
    assert (started.num_parameters, started.path, started.collusion_epsilon_spent) == (
        3_000_000,
        "exact",
        2.0,
    )
    assert closed == 3


def test_a_round_returns_the_helpers_share_and_sends_all_weights(known: World) -> None:
    share = AggregateShare(vector=random_vector(5, seeded(1)), agreement_tag=bytes(range(32)))
    weights = seeded(2)(5_000_000)
    fake = _fake(known)
    fake.answer_round = lambda sent: share.encode() if sent == weights else b""
    with serving(fake) as (client,):
        answer = client.run_round(_job(world()), 0, weights, 5)
    assert answer.encode() == share.encode()


@pytest.mark.parametrize("answer", [b"", bytes(32 + 4 * 8), bytes(32 + 5 * 8 - 1), bytes(32) + b"\xff" * 40])
def test_a_round_answered_with_other_than_field_elements_is_a_bad_answer(known: World, answer: bytes) -> None:
    fake = _fake(known)
    fake.answer_round = lambda _: answer
    _assert_bad_answer(fake, lambda client: client.run_round(_job(world()), 0, b"", 5))


def test_an_answer_without_end_is_cut_off_at_the_right_length(known: World) -> None:
    fake = _fake(known)
    fake.answer_round = lambda _: bytes(32 + 6 * 8)
    with serving(fake) as (client,), pytest.raises(JobRefused) as refusal:
        client.run_round(_job(world()), 0, b"", 5)
    assert refusal.value.reason is JobReason.BAD_ANSWER


def test_a_round_ends_when_its_job_is_cancelled(known: World) -> None:
    fake, release, cancelled = _fake(known), threading.Event(), threading.Event()
    fake.hold_rounds = release
    with serving(fake) as (client,):
        threading.Timer(0.05, cancelled.set).start()
        with pytest.raises(JobRefused) as refusal:
            client.run_round(_job(world()), 0, b"", 5, cancelled=cancelled)
        release.set()
    assert refusal.value.reason is JobReason.CANCELLED


def test_a_round_that_the_helper_ends_is_asked_again_and_not_taken_for_cancelled(known: World) -> None:
    """As a helper ends a call whose messages take too long: nobody here has cancelled anything."""
    fake = _fake(known)
    fake.ends_rounds = True
    with serving(fake) as (client,), pytest.raises(HelperUnavailable, match="too slow"):
        client.run_round(_job(world()), 0, b"", 5, cancelled=threading.Event())


def test_a_helper_that_is_too_slow_is_unavailable(known: World) -> None:
    fake, release = _fake(known), threading.Event()
    fake.hold_rounds = release
    with serving(fake, deadline_s=0.05) as (client,):
        with pytest.raises(HelperUnavailable, match="deadline"):
            client.run_round(_job(world()), 0, b"", 5)
        release.set()


def test_a_round_may_take_longer_than_any_other_answer(known: World) -> None:
    fake, release = _fake(known), threading.Event()
    fake.hold_rounds = release
    fake.answer_round = lambda _: AggregateShare(
        vector=random_vector(5, seeded(1)), agreement_tag=bytes(32)
    ).encode()
    with serving(fake, deadline_s=0.05, round_deadline_s=60.0) as (client,):
        threading.Timer(0.3, release.set).start()
        assert len(client.run_round(_job(world()), 0, b"", 5).vector) == 5


def test_a_preparation_ends_when_the_other_helper_failed(known: World) -> None:
    cancelled, begun = threading.Event(), threading.Event()

    is_over = threading.Event()

    def endless() -> Iterator[list[ShareForHelper]]:
        yield _shares(known, 2)
        begun.set()
        is_over.wait(HANGS_S)

    def stop() -> None:
        begun.wait(HANGS_S)
        cancelled.set()

    with serving(_fake(known)) as (client,):
        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(JobRefused) as refusal:
            client.prepare_dataset(
                known.task.task_id, bytes(16), endless(), num_reports=2, cancelled=cancelled
            )
        assert not is_over.is_set()
        is_over.set()
        stopping.join()
    assert refusal.value.reason is JobReason.CANCELLED


def test_a_helper_that_is_down_is_unavailable() -> None:
    with HelperClient("127.0.0.1:1", None, 1.0) as client, pytest.raises(HelperUnavailable):
        client.status()


def test_only_unavailability_is_retried() -> None:
    outcomes: list[Exception] = [
        HelperUnavailable("1"),
        HelperUnavailable("2"),
        JobRefused(JobReason.OVERFLOW, "no"),
    ]

    def call() -> None:
        raise outcomes.pop(0)

    with pytest.raises(JobRefused) as refusal:
        with_retries(call, _FAST)
    assert refusal.value.reason is JobReason.OVERFLOW
    assert outcomes == []


def test_retrying_returns_what_the_first_good_attempt_returns() -> None:
    outcomes: list[HelperUnavailable | str] = [HelperUnavailable("down"), HelperUnavailable("down"), "up"]

    def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, HelperUnavailable):
            raise outcome
        return outcome

    assert with_retries(call, _FAST) == "up"


def test_retrying_gives_up_with_the_last_error() -> None:
    def call() -> None:
        raise HelperUnavailable("still down")

    with pytest.raises(HelperUnavailable, match="still down"):
        with_retries(call, Backoff(first_s=0.001, longest_s=0.01, give_up_after_s=0.05))


def test_cancelling_ends_the_wait_for_a_helper() -> None:
    cancelled = threading.Event()

    def call() -> None:
        cancelled.set()
        raise HelperUnavailable("down")

    with pytest.raises(JobRefused) as refusal:
        with_retries(call, Backoff(first_s=60.0, longest_s=60.0), cancelled=cancelled)
    assert refusal.value.reason is JobReason.CANCELLED


def _assert_bad_answer(fake: FakeHelper, call: Callable[[HelperClient], object]) -> None:
    with serving(fake) as (client,), pytest.raises(JobRefused) as refusal:
        call(client)
    assert refusal.value.reason is JobReason.BAD_ANSWER


def _job(known: World) -> JobSpec:
    return JobSpec(
        job_id=bytes(16),
        task_id=known.task.task_id,
        dataset_id=bytes(32),
        model_digest=bytes(32),
        loss=Loss.MSE,
        rounds=1,
        sampling_numerator=1,
        noise_multiplier=0.0,
    )

"""Bad updates on their way: over HTTP to the ad server, over gRPC to two helpers, or from the job's settings.

Each is refused by name, and whatever was good before counts as if the bad one had never come.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adserver.records.job_state import JobState
from adserver.store.rounds import DeviceRound, DeviceRoundState
from browser_sim.devices.device import DeviceRequest
from maskedlark import canonical
from maskedlark.canonical import encode
from maskedlark.errors import InvalidTask, JobReason, ReportReason
from maskedlark.federated.populations import Population
from maskedlark.numbers.field import MODULUS, from_signed, subtract, to_bytes
from maskedlark.randomness import seeded
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.sealing import SealingKey
from maskedlark.reports.share_seed import expand_share
from maskedlark.reports.updates import SEED_ROLE, UPDATE_VERSION, update_info
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc.wire import decode_report, encode_report
from tests.builders import NOW
from tests.federated_site import DEVICES, FORM, ROUNDS, SETTINGS, NetworkSite
from tests.refusals import refused

HEADER = bytes([UPDATE_VERSION]) + bytes(16)
SEED = bytes(range(32))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NetworkSite]:
    with NetworkSite(tmp_path) as opened:
        yield opened


def asked_of(site: NetworkSite, stored: DeviceRound) -> DeviceRequest:
    """An open round as a device reads it."""
    encoded = encode(stored.round)
    return DeviceRequest.read(len(encoded).to_bytes(4, "little") + encoded + stored.content, site.scene.task)


def made(
    site: NetworkSite,
    asked: DeviceRequest,
    number: int,
    vector: np.ndarray | None = None,
    *,
    shares: tuple[bytes, bytes] | None = None,
) -> bytes:
    """A report that a device may not make, sealed as the product seals: what only a liar's device sends."""
    task_id, report_id = site.scene.task_id, b"liar" + number.to_bytes(12, "big")
    if shares is None:
        assert vector is not None
        expanded = expand_share(SEED, task_id, report_id, SEED_ROLE, len(vector))
        shares = (HEADER + SEED, HEADER + to_bytes(subtract(from_signed(vector), expanded)))
    bucket = site.scene.task.time_bucket(NOW)
    sealed = []
    for role, plaintext in enumerate(shares):
        key = SealingKey(site.scene.bundle.key_lists[role].key_list.keys[0])
        info = update_info(
            task_id=task_id,
            round_id=asked.round.round_id,
            report_id=report_id,
            time_bucket=bucket,
            role=role,
            key_id=key.key_id,
        )
        sealed.append(SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info)))
    report = Report(
        task_id=task_id,
        report_id=report_id,
        time_bucket=bucket,
        shares=(sealed[0], sealed[1]),
        round_id=asked.round.round_id,
    )
    return encode_report(report)


def run_with(site: NetworkSite, reports: Callable[[DeviceRequest], Sequence[bytes]]) -> list[tuple[int, str]]:
    """Run the job; before the devices answer round 0, a liar sends. What it was told."""
    told: list[tuple[int, str]] = []

    def answer(stored: DeviceRound) -> None:
        if stored.round.round_index == 0 and not told:
            for one in reports(asked_of(site, stored)):
                response = site.post(one)
                told.append((response.status_code, response.json().get("reason", "")))
        site.devices_answer(stored)

    job = site.run(answer)
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    return told


def a_good_one(site: NetworkSite, asked: DeviceRequest, number: int = 0) -> Report:
    vector = np.zeros(FORM.length, np.int64)
    return decode_report(made(site, asked, number, vector))


def test_an_update_of_another_length_round_model_or_task_is_refused_and_changes_no_bit(
    site: NetworkSite,
) -> None:
    site.submit()

    def reports(asked: DeviceRequest) -> list[bytes]:
        good = a_good_one(site, asked)
        longer = made(site, asked, 1, np.zeros(FORM.length + 400, np.int64))
        shorter = made(site, asked, 2, np.zeros(FORM.length - 1, np.int64))
        other_model = replace(asked.round, content_digest=bytes(32))
        return [
            longer,
            shorter,
            encode_report(replace(good, round_id=b"r" * 32)),
            encode_report(replace(good, round_id=other_model.round_id)),
            encode_report(replace(good, task_id=b"t" * 32)),
            encode_report(replace(good, round_id=b"")),
            b"no report at all",
        ]

    told = run_with(site, reports)
    assert [reason for _, reason in told] == [
        ReportReason.WRONG_LENGTH,
        ReportReason.WRONG_LENGTH,
        ReportReason.UNKNOWN_ROUND,
        ReportReason.UNKNOWN_ROUND,
        ReportReason.WRONG_TASK,
        ReportReason.WRONG_TASK,
        ReportReason.MALFORMED,
    ]
    assert all(400 <= status < 500 for status, _ in told)
    assert site.state() == site.simulated()


def dropped_by(
    site: NetworkSite, role: int, lies: Callable[[DeviceRequest], Sequence[bytes]]
) -> list[dict[Any, int]]:
    """What a helper says that it dropped in each round, with lies in it that the ad server cannot see."""
    prepared: list[Any] = []
    real = site.helpers[role].prepare_dataset

    def prepare(*args: Any, **how: Any) -> Any:
        prepared.append(real(*args, **how))
        return prepared[-1]

    site.helpers[role].prepare_dataset = prepare
    told: list[int] = []

    def answer(stored: DeviceRound) -> None:
        if stored.round.round_index not in told:
            told.append(stored.round.round_index)
            for one in lies(asked_of(site, stored)):
                assert site.post(one).status_code == 201
        site.devices_answer(stored)

    assert site.run(answer).state is JobState.DONE
    assert [int(one.is_admitted.sum()) for one in prepared] == [DEVICES] * ROUNDS
    return [dict(one.dropped) for one in prepared]


def test_what_was_sealed_for_another_round_or_model_does_not_open_at_a_helper(site: NetworkSite) -> None:
    """It names the open round outside, where only the ad server looks, and is dropped by both helpers."""
    site.submit(least_devices=DEVICES + 2, settings={**SETTINGS, "devices": DEVICES + 2})

    def lies(asked: DeviceRequest) -> list[bytes]:
        zeros = np.zeros(FORM.length, np.int64)
        others = (
            replace(asked, round=replace(asked.round, content_digest=bytes(32))),
            replace(asked, round=replace(asked.round, round_index=(asked.round.round_index + 1) % ROUNDS)),
        )
        moved = [decode_report(made(site, other, number, zeros)) for number, other in enumerate(others)]
        return [encode_report(replace(one, round_id=asked.round.round_id)) for one in moved]

    assert dropped_by(site, 0, lies) == [{ReportReason.NOT_OPENED: 2}] * ROUNDS


def test_an_update_that_is_longer_by_what_suites_differ_is_dropped_by_the_helper_that_opens_it(
    site: NetworkSite,
) -> None:
    """It has the length of an update under the other suite, and the ad server sees lengths only."""
    site.submit(least_devices=DEVICES + 1, settings={**SETTINGS, "devices": DEVICES + 1})

    def lies(asked: DeviceRequest) -> list[bytes]:
        return [made(site, asked, 1, np.zeros(FORM.length + 1_088 // 8, np.int64))]

    assert dropped_by(site, 1, lies) == [{ReportReason.WRONG_LENGTH: 1}] * ROUNDS


@pytest.mark.parametrize("element", [MODULUS, 2**64 - 1])
def test_a_share_that_is_no_field_vector_is_dropped_by_the_helper_that_opens_it(
    site: NetworkSite, element: int
) -> None:
    site.submit(least_devices=DEVICES + 1, settings={**SETTINGS, "devices": DEVICES + 1})
    shares = (HEADER + SEED, HEADER + element.to_bytes(8, "little") * FORM.length)
    assert (
        dropped_by(site, 1, lambda asked: [made(site, asked, 7, shares=shares)])
        == [{ReportReason.NOT_OPENED: 1}] * ROUNDS
    )


@pytest.mark.parametrize("spread", ["one coordinate", "all coordinates"])
def test_an_update_that_no_clip_bounds_makes_a_sum_that_is_thrown_away(
    site: NetworkSite, spread: str
) -> None:
    """Its coordinates may each be possible: then the length of the sum tells."""
    vector = np.zeros(FORM.length, np.int64)
    unit = site.scene.task.clip.sensitivity
    if spread == "one coordinate":
        vector[0] = 100 * unit
    else:
        vector[: FORM.num_parameters] = (DEVICES + 1) * unit - unit
    site.submit(least_devices=DEVICES + 1, settings={**SETTINGS, "devices": DEVICES + 1})
    sent: list[bytes] = []

    def answer(stored: DeviceRound) -> None:
        if not sent:
            sent.append(made(site, asked_of(site, stored), 9, vector))
            assert site.post(sent[0]).status_code == 201
        site.devices_answer(stored)

    job = site.run(answer)
    assert job.state is JobState.REFUSED
    assert job.stop is not None
    assert job.stop.reason == JobReason.SUM_OUT_OF_RANGE
    assert job.rounds_done == 0


def test_a_round_of_forged_updates_alone_begins_again_and_the_job_goes_on(site: NetworkSite) -> None:
    site.submit(least_devices=2, window_s=0.0)
    shares = (HEADER + SEED, HEADER + b"\xff" * 8 * FORM.length)
    forged: list[int] = []

    def answer(stored: DeviceRound) -> None:
        if not forged:
            asked = asked_of(site, stored)
            for number in range(2):
                assert site.post(made(site, asked, number, shares=shares)).status_code == 201
                forged.append(number)
        elif site.rounds.count(stored.round.round_id) == 0:
            site.devices_answer(stored)

    assert site.run(answer).state is JobState.DONE


def test_more_updates_than_a_dataset_holds_do_not_stop_a_job(tmp_path: Path) -> None:
    with NetworkSite(tmp_path, {"max_dataset_size": 4}) as site:
        site.submit(least_devices=2, window_s=1e6, settings={**SETTINGS, "devices": 4})
        job = site.run()
        assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
        assert site.scene.cores[0].counts().datasets == ROUNDS


def test_helpers_refuse_a_round_of_another_task_or_clip_over_grpc(site: NetworkSite) -> None:
    one = site.scene.round(clip_norm=site.scene.task.clip_norm * 2)
    other = canonical.build(type(one.job), {**plain(one.job), "task_id": bytes(32)})
    for wrong in (one, replace(one, clip_norm=0.5, job=other)):
        with refused(JobReason.MALFORMED):
            site.helpers[0].prepare_dataset(
                site.scene.task_id, b"h" * 16, [], num_reports=0, update_round=encode(wrong)
            )
    with refused(JobReason.UNKNOWN_DATASET):
        site.helpers[0].run_query(
            UpdateSpec(dataset_id=bytes(32), round=site.scene.round()), b"", FORM.length
        )


def test_shares_of_updates_are_not_prepared_as_labels(site: NetworkSite) -> None:
    with refused(JobReason.MALFORMED):
        site.helpers[0].prepare_dataset(site.scene.task_id, b"h" * 16, [], num_reports=0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": float("nan")}, "sampling_rate"),
        ({"rounds": 0}, "rounds"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"devices": 0}, "devices"),
        ({"total_weight": 0.0}, "total_weight"),
        ({"least_weight": 1.0}, "least_weight"),
        ({"bound": {"clip_norm": 0.0}}, "clip_norm"),
        ({"bound": {"clip_norm": 2.0}}, "clip_norm"),
        ({"bound": {"weight_cap": -1.0}}, "weight_cap"),
        ({"local": {"learning_rate": -1.0}}, "learning_rate"),
        ({"server": {"kind": "sgd"}}, "server"),
    ],
)
def test_a_strategy_setting_out_of_range_is_refused_by_name_and_nothing_is_stored(
    site: NetworkSite, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidTask, match=told):
        site.submit(settings={**SETTINGS, **settings})
    assert site.store.all() == ()
    assert site.rounds.newest_open(site.scene.task_id) is None


def test_data_whose_users_have_too_few_examples_is_refused_by_name() -> None:
    with pytest.raises(InvalidTask, match="no user has 3 examples"):
        Population.by_user(["a", "b", "a", "c"], least=3)
    assert len(Population.by_user(["a", "b", "a", "c"], least=2)) == 1
    with pytest.raises(InvalidTask, match="too few"):
        Population.in_equal_parts(9, each=10, randomness=seeded(1))
    with pytest.raises(InvalidTask, match="shards"):
        Population.in_shards(
            np.zeros(9, np.int64), devices=1, shards_each=2, shard_size=5, randomness=seeded(1)
        )


def plain(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__dataclass_fields__}


def test_a_late_update_is_told_so_and_a_double_one_that_it_is_stored(site: NetworkSite) -> None:
    site.submit()
    sent: list[bytes] = []
    doubled: list[str] = []

    def answer(stored: DeviceRound) -> None:
        if not doubled:
            [first] = site.devices_answer(stored, dies_after=1)
            sent.append(first)
            doubled.append(site.post(first).json()["result"])
        sent.extend(site.devices_answer(stored))

    assert site.run(answer).state is JobState.DONE
    assert doubled == ["duplicate"]
    late = site.post(sent[0])
    assert (late.status_code, late.json()["reason"]) == (422, ReportReason.ROUND_OVER)
    assert site.state() == site.simulated()
    stored = site.rounds.newest_open(site.scene.task_id)
    assert stored is None or stored.state is DeviceRoundState.OPEN

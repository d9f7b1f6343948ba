from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from maskedlark import canonical
from maskedlark.canonical import digest, encode
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.numbers.field import from_bytes, reconstruct, to_signed
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from maskedlark.releases.release import combine
from maskedlark.releases.update import UpdateSpec, answer_update
from maskedlark.reports.share_seed import expand_share
from maskedlark.reports.task import Task
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.reports.updates import UpdateForm, UpdateSum, split_update
from maskedlark.reports.upload import Report, SealedShare, Sealer
from tests import reference
from tests.builders import NOW, World, check_report, settings, world
from tests.refusals import refused
from tests.update_builders import (
    FORM,
    random_vector,
    update_opener,
    update_reports,
    update_round,
    update_settings,
    update_world,
)

WORLD = update_world()
ROUND = update_round(WORLD.task)
CLIP = ROUND.clip(WORLD.task)
VECTORS = [random_vector(FORM, CLIP, seed) for seed in range(4)]
REPORTS = update_reports(WORLD, ROUND, VECTORS)


def sums(of: World, one: object, reports: list[Report]) -> list[np.ndarray]:
    found = []
    for role in (0, 1):
        opener = update_opener(of, role, ROUND)
        total = UpdateSum(form=FORM, role=role, task_id=of.task.task_id)
        for report in reports:
            total.add(
                report.report_id,
                opener.open(report.report_id, report.time_bucket, report.shares[role]).payload,
            )
        found.append(total.total())
    return found


def test_shares_of_opened_reports_add_up_to_the_sum_of_the_updates() -> None:
    first, second = sums(WORLD, ROUND, REPORTS)
    assert (to_signed(reconstruct(first, second)) == sum(VECTORS)).all()


def test_both_helpers_tag_a_report_alike_and_two_rounds_differently() -> None:
    report = REPORTS[0]
    tags = [
        update_opener(WORLD, role, ROUND)
        .open(report.report_id, report.time_bucket, report.shares[role])
        .view_tag
        for role in (0, 1)
    ]
    assert tags[0] == tags[1]
    plaintext = split_update(
        VECTORS[0], task_id=WORLD.task.task_id, report_id=bytes(16), randomness=seeded(1)
    ).share_0
    views = {FORM.decode_share(0, plaintext, round_id).view for round_id in (bytes(32), bytes(31) + b"1")}
    assert len(views) == 2


@given(st.lists(st.integers(-(2**20), 2**20), min_size=7, max_size=7), st.integers(0, 2**32))
def test_split_vectors_reconstruct_and_the_seed_is_one_share(values: list[int], seed: int) -> None:
    vector = np.array(values, np.int64)
    parts = split_update(vector, task_id=b"t" * 32, report_id=b"r" * 16, randomness=seeded(seed))
    assert (len(parts.share_0), len(parts.share_1)) == (FORM.share_length(0), FORM.share_length(1))
    expanded = expand_share(parts.share_0[17:], b"t" * 32, b"r" * 16, 0, 7)
    assert (to_signed(reconstruct(expanded, from_bytes(parts.share_1[17:], 7))) == vector).all()


def test_an_upload_takes_eight_bytes_a_parameter_and_little_more() -> None:
    form = UpdateForm(num_parameters=10_000)
    assert sum(form.share_length(role) for role in (0, 1)) <= 8.1 * 10_000


def test_cover_is_zero_in_every_coordinate_and_as_long_as_an_update() -> None:
    sealed = update_reports(WORLD, ROUND, [FORM.zeros(), VECTORS[0]])
    first, second = sums(WORLD, ROUND, sealed[:1])
    assert not to_signed(reconstruct(first, second)).any()
    lengths = [[len(share.ciphertext) for share in report.shares] for report in sealed]
    assert lengths[0] == lengths[1]


def test_the_reference_opens_our_reports_and_we_open_its() -> None:
    helpers = [
        reference.Helper(
            agreement=keys.agreement,
            hpke=X25519PrivateKey.from_private_bytes(keys.opening.secret_bytes()),
            key_id=keys.opening.key_id,
        )
        for keys in WORLD.keys
    ]
    bucket = REPORTS[0].time_bucket
    spec = UpdateSpec(dataset_id=bytes(32), round=ROUND)
    setting = reference.UpdateSetting(
        task_id=WORLD.task.task_id,
        round_id=ROUND.round_id,
        spec=encode(spec),
        time_bucket=bucket,
        length=FORM.length,
        min_batch_size=WORLD.task.min_batch_size,
    )
    made = reference.make_update(setting, (helpers[0], helpers[1]), VECTORS[0].tolist(), Random(3))
    theirs = Report(
        task_id=WORLD.task.task_id,
        report_id=made.report_id,
        time_bucket=bucket,
        shares=(
            SealedShare(key_id=1, ciphertext=made.ciphertexts[0]),
            SealedShare(key_id=2, ciphertext=made.ciphertexts[1]),
        ),
        round_id=ROUND.round_id,
    )
    check_report(WORLD.task, theirs)
    all_of_them = [*REPORTS, theirs]
    answers = [
        answer_update(
            task=WORLD.task,
            spec=spec,
            pair=WORLD.pair(role),
            records=len(all_of_them),
            vector=summed,
            noise=lambda _mechanism, _scale, count: np.zeros(count, np.int64),
        )
        for role, summed in enumerate(sums(WORLD, ROUND, all_of_them))
    ]
    stored = [
        reference.SealedReport(
            report_id=one.report_id, ciphertexts=(one.shares[0].ciphertext, one.shares[1].ciphertext)
        )
        for one in all_of_them
    ]
    expected = reference.run_updates(setting, (helpers[0], helpers[1]), stored)
    assert combine(*answers).tolist() == expected == (sum(VECTORS) + VECTORS[0]).tolist()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda vector: vector[:-1], "7 integers"),
        (lambda vector: vector.astype(np.float64), "float64"),
        (lambda vector: np.concatenate([vector[:5] * 2, vector[5:]]), "norm"),
        (lambda vector: np.concatenate([[np.iinfo(np.int64).min], vector[1:]]), "norm"),
        (lambda vector: np.concatenate([vector[:5], [-1], vector[6:]]), "weight"),
        (lambda vector: np.concatenate([vector[:5], [CLIP.sensitivity], vector[6:]]), "weight"),
        (lambda vector: np.concatenate([vector[:6], [1]]), "clip coordinate"),
    ],
)
def test_a_vector_that_may_not_be_sent_is_refused_before_it_is_sealed(change: Any, told: str) -> None:
    with pytest.raises(InvalidTask, match=told):
        update_reports(WORLD, ROUND, [change(VECTORS[0])])


def test_the_largest_vector_that_passes_has_the_released_sensitivity() -> None:
    clip = Clip(norm=Norm.L2, bound=1.0, frac_bits=24)
    units = FORM.figure_units(clip)
    vector = np.array([clip.sensitivity, 0, 0, 0, 0, units, -units], np.int64)
    FORM.check_vector(clip, vector)
    square = sum(int(value) ** 2 for value in vector)
    assert (FORM.released_sensitivity(clip) - 1) ** 2 < square <= FORM.released_sensitivity(clip) ** 2
    with pytest.raises(InvalidTask, match="beyond the clip bound"):
        FORM.check_vector(clip, vector + np.array([1, 0, 0, 0, 0, 0, 0]))


def rejected(role: int, report: Report, **of: Any) -> ReportReason:
    with pytest.raises(ReportRejected) as error:
        update_opener(WORLD, role, replace(ROUND, **of)).open(
            report.report_id, report.time_bucket, report.shares[role]
        )
    return error.value.reason


def test_a_share_opens_for_its_round_only() -> None:
    other_job = replace(ROUND.job, job_id=b"v" * 16)
    other_noise = replace(ROUND.job, phases=(replace(ROUND.job.phases[0], sampling_rate=0.25),))
    for change in (
        {"round_index": 1},
        {"content_digest": b"x" * 32},
        {"clip_norm": 0.5},
        {"job": other_job},
        {"job": other_noise},
    ):
        assert [rejected(role, REPORTS[0], **change) for role in (0, 1)] == [ReportReason.NOT_OPENED] * 2


def test_what_is_no_share_of_the_round_is_dropped_with_a_reason() -> None:
    report = REPORTS[0]
    cut = replace(report.shares[1], ciphertext=report.shares[1].ciphertext[:100])
    assert rejected(1, replace(report, shares=(report.shares[0], cut))) is ReportReason.WRONG_LENGTH
    assert (
        rejected(0, replace(report, shares=(replace(report.shares[0], key_id=9), cut)))
        is ReportReason.UNKNOWN_KEY
    )
    assert rejected(0, replace(report, report_id=b"short")) is ReportReason.MALFORMED
    assert rejected(0, replace(report, report_id=bytes(16))) is ReportReason.NOT_OPENED
    assert rejected(0, replace(report, time_bucket=0)) is ReportReason.OUTSIDE_TASK_PERIOD
    with refused(ReportReason.MASK_NOT_CANONICAL):
        FORM.decode_share(1, bytes([1]) + bytes(16) + b"\xff" * 8 * FORM.length, bytes(32))
    with refused(ReportReason.WRONG_VERSION):
        FORM.decode_share(0, bytes([2]) + bytes(48), bytes(32))
    with refused(ReportReason.WRONG_LENGTH):
        FORM.decode_share(0, bytes([1]) + bytes(47), bytes(32))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task_id": bytes(32)}, ReportReason.WRONG_TASK),
        ({"round_id": b""}, ReportReason.WRONG_TASK),
        ({"round_id": bytes(31)}, ReportReason.MALFORMED),
        ({"report_id": bytes(15)}, ReportReason.MALFORMED),
        ({"time_bucket": 0}, ReportReason.OUTSIDE_TASK_PERIOD),
        ({"shares": (REPORTS[0].shares[1], REPORTS[0].shares[0])}, ReportReason.WRONG_LENGTH),
        ({"shares": (SealedShare(key_id=256, ciphertext=b""), REPORTS[0].shares[1])}, ReportReason.MALFORMED),
    ],
)
def test_the_ad_server_refuses_what_can_be_no_update_report(
    change: dict[str, Any], reason: ReportReason
) -> None:
    with refused(reason):
        check_report(WORLD.task, replace(REPORTS[0], **change))


def test_tasks_of_updates_and_of_labels_take_no_reports_of_each_other() -> None:
    labels = world()
    with pytest.raises(InvalidTask, match="takes updates of a model"):
        Sealer(WORLD.bundle, now=NOW)
    with pytest.raises(InvalidTask, match="declares no updates"):
        UpdateSealer(labels.bundle, now=NOW)
    with refused(ReportReason.WRONG_TASK):
        check_report(WORLD.task, replace(REPORTS[0], round_id=b""))
    with refused(ReportReason.WRONG_TASK):
        check_report(labels.task, replace(REPORTS[0], task_id=labels.task.task_id))


def test_a_task_without_new_settings_keeps_its_canonical_bytes() -> None:
    encoded = encode(world().task)
    assert not any(name in encoded for name in (b"unit", b"updates", b"reports_per_user"))
    assert all(name in encode(WORLD.task) for name in (b'"unit":"user"', b'"updates":'))
    assert canonical.decode(Task, encode(WORLD.task)) == WORLD.task


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit": "report"}, "unit user"),
        ({"reports_per_user": 2}, "one report of each person"),
        ({"norm": "l1"}, "norm l2"),
        ({"mechanism": "laplace", "norm": "l1"}, "norm l2"),
        ({"measurement": {"min_cell_count": 2}}, "no measurement"),
        ({"fake_report_rate": 0.5}, "fake_report_rate"),
        ({"updates": {"num_parameters": 200_000}}, "num_parameters"),
        ({"updates": {"num_parameters": 5, "cover": 1.5}}, "cover"),
    ],
)
def test_settings_that_do_not_go_with_updates_are_refused(changes: dict[str, object], reason: str) -> None:
    helpers = (WORLD.keys[0].identity("north"), WORLD.keys[1].identity("south"))
    with pytest.raises(InvalidTask, match=reason):
        canonical.build(Task, settings(helpers=helpers, **update_settings(**changes)))


def test_a_report_is_at_its_time_bucket_and_of_its_round() -> None:
    assert {report.round_id for report in REPORTS} == {ROUND.round_id}
    assert {report.time_bucket for report in REPORTS} == {NOW // WORLD.task.time_bucket_s}
    assert len({report.report_id for report in REPORTS}) == len(REPORTS)
    assert ROUND.round_id != digest("update round", b"")

"""What the ad server refuses of a report by what it can see, each for its reason."""

from dataclasses import replace

import pytest

from maskedlark.errors import ReportReason
from maskedlark.reports.sealing import OVERHEADS
from maskedlark.reports.upload import Report, ReportCheck, SealedShare
from tests.builders import World, examples, reports, world
from tests.refusals import refused
from tests.update_builders import FORM, random_vector, update_reports, update_round, update_world

LABELS, UPDATES = world(), update_world()
(REPORT,) = reports(LABELS, examples(LABELS.task, 1))
(UPDATE,) = update_reports(
    UPDATES, update_round(UPDATES.task), [random_vector(FORM, UPDATES.task.clip, seed=1)]
)


def test_a_tasks_period_is_every_bucket_that_a_moment_of_it_falls_into() -> None:
    task = LABELS.task
    ends = task.expires_at
    for expires_at in (ends, ends + 1, ends + task.time_bucket_s - 1):
        buckets = replace(task, expires_at=expires_at).time_buckets
        assert (buckets[0], buckets[-1]) == (
            task.time_bucket(task.starts_at),
            task.time_bucket(expires_at - 1),
        )


def with_key(report: Report, role: int, key_id: int) -> Report:
    shares = list(report.shares)
    shares[role] = replace(shares[role], key_id=key_id)
    return replace(report, shares=(shares[0], shares[1]))


def sized(of: World, report: Report, role: int, overhead: int) -> Report:
    """A report of which one share has so many bytes more than its content."""
    shares: list[SealedShare] = list(report.shares)
    length = of.task.plaintext_length(role) + overhead
    shares[role] = replace(shares[role], ciphertext=bytes(length))
    return replace(report, shares=(shares[0], shares[1]))


@pytest.mark.parametrize("role", [0, 1])
def test_a_share_is_as_long_as_one_of_the_suites_makes_it(role: int) -> None:
    for of, report in ((LABELS, REPORT), (UPDATES, UPDATE)):
        for overhead in OVERHEADS:
            ReportCheck(of.task).check(sized(of, report, role, overhead))
        for overhead in (one + extra for one in OVERHEADS for extra in (-1, 1)):
            with refused(ReportReason.WRONG_LENGTH):
                ReportCheck(of.task).check(sized(of, report, role, overhead))


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("key_id", [0, 255])
def test_a_key_id_is_any_byte(role: int, key_id: int) -> None:
    ReportCheck(LABELS.task).check(with_key(REPORT, role, key_id))
    ReportCheck(UPDATES.task).check(with_key(UPDATE, role, key_id))


@pytest.mark.parametrize(
    ("of", "report", "reason"),
    [
        (LABELS, replace(REPORT, task_id=bytes(32)), ReportReason.WRONG_TASK),
        (LABELS, replace(REPORT, round_id=bytes(32)), ReportReason.WRONG_TASK),
        (UPDATES, replace(UPDATE, round_id=b""), ReportReason.WRONG_TASK),
        (LABELS, UPDATE, ReportReason.WRONG_TASK),
        (LABELS, replace(REPORT, report_id=bytes(15)), ReportReason.MALFORMED),
        (LABELS, replace(REPORT, report_id=bytes(17)), ReportReason.MALFORMED),
        (UPDATES, replace(UPDATE, round_id=bytes(31)), ReportReason.MALFORMED),
        (LABELS, replace(REPORT, time_bucket=0), ReportReason.OUTSIDE_TASK_PERIOD),
        (LABELS, replace(REPORT, time_bucket=1 << 40), ReportReason.OUTSIDE_TASK_PERIOD),
        (LABELS, with_key(REPORT, 0, 256), ReportReason.MALFORMED),
        (LABELS, with_key(REPORT, 1, -1), ReportReason.MALFORMED),
    ],
)
def test_what_a_report_is_refused_for(of: World, report: Report, reason: ReportReason) -> None:
    with refused(reason):
        ReportCheck(of.task).check(report)

"""A typed text means one job, or none."""

import pytest

from adserver.records.typed_ids import check_whole
from maskedlark.errors import JobReason, JobRefused

JOB = bytes(range(16))


@pytest.mark.parametrize("typed", ["", "000102", JOB.hex().upper(), "churn-v10"])
def test_a_job_is_changed_by_its_whole_name_or_the_start_of_its_id(typed: str) -> None:
    check_whole(JOB, "churn-v10", typed)


@pytest.mark.parametrize("typed", ["churn-v1", "c", "CHURN-V10"])
def test_a_job_is_not_changed_by_a_part_of_its_name(typed: str) -> None:
    with pytest.raises(JobRefused, match=r"'churn-v10' \(000102030405\) begins with it") as refused:
        check_whole(JOB, "churn-v10", typed)
    assert refused.value.reason is JobReason.UNKNOWN_JOB

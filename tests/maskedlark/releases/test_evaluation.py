"""What an evaluation is refused for before anything is charged."""

from typing import Any

import pytest

from maskedlark.errors import JobReason
from maskedlark.releases.evaluation import MAX_BINS, EvaluationSpec
from tests.builders import world
from tests.refusals import refused

GAUSSIAN: dict[str, Any] = {"mechanism": "gaussian", "norm": "l2", "epsilon": 8.0}
TASK = world(**GAUSSIAN).task


def evaluation(**changes: Any) -> EvaluationSpec:
    asked: dict[str, Any] = {"num_bins": 10, "noise_multiplier": 1.0, **changes}
    return EvaluationSpec(
        query_id=bytes(16),
        task_id=TASK.task_id,
        dataset_id=bytes(32),
        model_digest=bytes(32),
        weights_digest=bytes(32),
        **asked,
    )


def test_an_evaluation_that_fits_is_not_refused() -> None:
    for spec in (evaluation(), evaluation(num_bins=MAX_BINS)):
        spec.check(TASK, records=1_000)


@pytest.mark.parametrize(
    ("changes", "records", "reason"),
    [
        ({"num_bins": MAX_BINS + 1}, 1_000, JobReason.DOMAIN_TOO_LARGE),
        ({"noise_multiplier": 0.0}, 1_000, JobReason.NOISE_OUT_OF_RANGE),
        ({}, 1 << 50, JobReason.OVERFLOW),
    ],
    ids=str,
)
def test_what_an_evaluation_is_refused_for(changes: dict[str, Any], records: int, reason: JobReason) -> None:
    with refused(reason):
        evaluation(**changes).check(TASK, records=records)

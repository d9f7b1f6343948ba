"""What an evaluation is refused for before anything is charged."""

from typing import Any

import pytest

from maskedlark.errors import JobReason
from maskedlark.releases.evaluation import MAX_BINS, EvaluationSpec
from tests.builders import world
from tests.maskedlark.query_specs import evaluation as evaluation_of
from tests.refusals import refused
from tests.update_builders import update_world

GAUSSIAN: dict[str, Any] = {"mechanism": "gaussian", "norm": "l2", "epsilon": 8.0}
OF = world(**GAUSSIAN)
TASK = OF.task


def evaluation(**changes: Any) -> EvaluationSpec:
    return evaluation_of(OF, **{"noise_multiplier": 1.0, **changes})


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


def test_an_evaluation_of_reports_that_hold_updates_is_refused() -> None:
    of = update_world()
    with refused(JobReason.UNDECLARED, "updates and no labels"):
        evaluation_of(of).check(of.task, records=10)

"""A federated job's instructions: read as they were written, and fitting the task's reports or refused."""

from dataclasses import replace
from typing import Any

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.releases.instructions import check_fits, read_instructions, update_job, update_round
from maskedlark.reports.updates import UpdateForm
from tests.builders import world
from tests.maskedlark.federated.federated_world import dp_fedavg
from tests.update_builders import update_world

MODEL = DenseModel(widths=(4, 3, 2))
STRATEGY = dp_fedavg(noise_multiplier=1.0)
BOUND = STRATEGY.bound


def task_of(**changes: Any) -> Any:
    form: dict[str, Any] = {
        "num_parameters": MODEL.size,
        "has_weight": BOUND.is_weight_summed,
        "has_clip_count": BOUND.is_counted,
        "cover": STRATEGY.cover_rate,
    }
    settings: dict[str, Any] = {
        "mechanism": "gaussian",
        "num_features": 4,
        "labels": {"kind": "classes", "size": 2, "default_label": 0},
        "clip_norm": BOUND.clip_norm,
        "frac_bits": BOUND.frac_bits,
        "updates": UpdateForm(**form),
        **changes,
    }
    return update_world(**settings).task


TASK = task_of()


def test_what_was_written_is_read() -> None:
    job = update_job(job_id=b"j" * 16, task_id=TASK.task_id, strategy=STRATEGY, model=MODEL)
    assert read_instructions(job) == (STRATEGY, MODEL)
    (phase,) = job.phases
    assert (phase.rounds, phase.sampling_rate, phase.noise_multiplier) == (
        STRATEGY.rounds,
        STRATEGY.sampling_rate,
        STRATEGY.noise_multiplier,
    )


def test_a_round_binds_what_the_strategy_asks() -> None:
    job = update_job(job_id=b"j" * 16, task_id=TASK.task_id, strategy=STRATEGY, model=MODEL)
    asked = STRATEGY.next_round(STRATEGY.start(MODEL.initial(bytes)))
    assert asked is not None
    one = update_round(job, asked)
    assert (one.round_index, one.clip_norm, one.content_digest) == (0, BOUND.clip_norm, asked.digest())
    one.check(TASK, records=100)


def test_what_fits_is_accepted() -> None:
    check_fits(TASK, STRATEGY, MODEL)
    check_fits(replace(TASK, clip_norm=2 * BOUND.clip_norm), STRATEGY, MODEL)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"updates": replace(TASK.updates, num_parameters=MODEL.size + 1)}, "the number of parameters"),
        ({"frac_bits": BOUND.frac_bits + 1}, "bound.frac_bits"),
        ({"updates": replace(TASK.updates, has_weight=not BOUND.is_weight_summed)}, "bound.is_weight_summed"),
        ({"updates": replace(TASK.updates, has_clip_count=not BOUND.is_counted)}, "bound.is_counted"),
        ({"updates": replace(TASK.updates, cover=0.25)}, "cover_rate"),
        ({"clip_norm": BOUND.clip_norm / 2}, "bound.clip_norm"),
        ({"num_features": 5}, "4 features and 2 classes"),
        ({"labels": {"kind": "classes", "size": 3, "default_label": 0}}, "4 features and 2 classes"),
        ({"updates": None}, "declares no updates"),
    ],
    ids=str,
)
def test_what_the_tasks_reports_do_not_hold_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    task = world().task if changes.get("updates", TASK) is None else task_of(**changes)
    strategy: DpFedAvg = STRATEGY
    with pytest.raises(InvalidTask, match=named):
        check_fits(task, strategy, MODEL)

"""How a person asks for a clip that is not one bound for the whole gradient and all rounds."""

from dataclasses import replace
from typing import Any

import pytest

from adserver.records.defaults import CLIP_QUANTILE
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.reports.task import Task
from tests.adserver.training.test_submission import CORRELATED, QUIET, SUBMISSION, plan, task_of


def test_a_new_jobs_clip_follows_the_default_quantile_below_the_tasks_bound() -> None:
    made = plan()
    assert made.adaptive_clip == AdaptiveClip(quantile=CLIP_QUANTILE)
    assert (made.job.is_clip_adaptive, made.job.is_clip_per_layer) == (True, False)
    assert made.job.clip(made.task).bound == made.task.clip_norm


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        (task_of(), {"clip_norm": 0.5}),
        (task_of(), {"is_clip_per_layer": True}),
        (task_of(epsilon=16.0, collusion_epsilon=32.0), {**CORRELATED, "noise_multiplier": 8.0}),
        (QUIET, {"epsilon": None}),
    ],
)
def test_one_bound_holds_in_all_rounds_where_something_asks_for_it(of: Task, changes: dict[str, Any]) -> None:
    made = plan(of, **changes)
    assert made.adaptive_clip is None
    assert not made.job.is_clip_adaptive
    assert made.job.clip(of).bound == changes.get("clip_norm", of.clip_norm)


def test_an_adaptive_clip_moves_below_a_jobs_own_bound() -> None:
    made = plan(clip_norm=0.5, adaptive_clip=AdaptiveClip(quantile=0.8))
    assert made.job.is_clip_adaptive
    assert made.job.clip(made.task).bound == 0.5


@pytest.mark.parametrize("clip_norm", [1.0001, 0.0, float("nan")])
def test_a_clip_above_the_tasks_is_refused(clip_norm: float) -> None:
    with pytest.raises(MaskedLarkError, match="clip_norm"):
        plan(clip_norm=clip_norm)


def test_an_adaptive_clip_is_told_to_the_helpers_and_its_settings_are_not() -> None:
    made = plan(adaptive_clip=AdaptiveClip(quantile=0.8))
    assert made.job.is_clip_adaptive
    assert made.adaptive_clip == AdaptiveClip(quantile=0.8)
    assert made.job == plan(adaptive_clip=AdaptiveClip(quantile=0.3)).job


def test_a_clip_per_layer_is_told_to_the_helpers() -> None:
    assert plan(is_clip_per_layer=True).job.is_clip_per_layer


def test_both_at_once_are_refused() -> None:
    with pytest.raises(InvalidTask, match="per layer"):
        plan(adaptive_clip=AdaptiveClip(), is_clip_per_layer=True)


def test_a_plan_and_its_job_say_the_same_of_the_clip() -> None:
    made = plan(adaptive_clip=AdaptiveClip())
    with pytest.raises(ValueError, match="adaptive"):
        replace(made, adaptive_clip=None)
    assert SUBMISSION.adaptive_clip is None

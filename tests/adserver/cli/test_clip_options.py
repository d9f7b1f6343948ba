"""How a person asks for a clip that is not one bound for the whole gradient and all rounds."""

from dataclasses import replace

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from tests.adserver.training.test_submission import SUBMISSION, plan


def test_a_clip_is_the_tasks_unless_asked_for() -> None:
    made = plan()
    assert made.adaptive_clip is None
    assert (made.job.is_clip_adaptive, made.job.is_clip_per_layer) == (False, False)


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

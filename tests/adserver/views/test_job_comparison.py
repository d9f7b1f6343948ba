"""Jobs side by side: what none of them has takes no line."""

from dataclasses import replace
from typing import Any

import pytest

from adserver.views.job_comparison import _ComparedJob, print_comparison, why_not_comparable

WITHOUT_HELPERS = _ComparedJob(
    job="0a" * 16,
    name="",
    task="",
    task_id=None,
    dataset_id=None,
    model="4-2",
    state="open",
    rounds=2,
    rounds_done=0,
    batch=None,
    learning_rate=None,
    noise_multiplier=None,
    epsilon=None,
    collusion_epsilon=None,
    loss=None,
    calibrated_loss=None,
    accuracy=None,
    auc=None,
    best_loss=None,
    best_calibrated_loss=None,
    best_rounds=None,
    note="",
)


def test_what_no_compared_job_has_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison([WITHOUT_HELPERS, WITHOUT_HELPERS])
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["job", "model", "state", "rounds", "rounds"]
    print_comparison([WITHOUT_HELPERS, replace(WITHOUT_HELPERS, loss=0.0)])
    assert "loss" in capsys.readouterr().out


OVER_A_DATASET = replace(
    WITHOUT_HELPERS, task="clicks", task_id="7a" * 32, dataset_id="da" * 32, model="3d" * 32, auc=0.7
)


def test_task_dataset_and_model_of_each_job_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison([OVER_A_DATASET, OVER_A_DATASET])
    said = capsys.readouterr().out
    shown = {line.split("  ")[0]: line.split()[-1] for line in said.splitlines()}
    assert {name: shown[name] for name in ("task", "task id", "dataset id", "model")} == {
        "task": "clicks",
        "task id": "7a" * 6,
        "dataset id": "da" * 6,
        "model": "3d" * 6,
    }
    assert "warning" not in said


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"task_id": "7b" * 32}, "warning: these jobs are of different tasks"),
        ({"dataset_id": "db" * 32}, "warning: these jobs are over different datasets"),
        # Its figures are none that a person would compare
        ({"task_id": None, "dataset_id": None}, ""),
    ],
)
def test_jobs_of_different_tasks_or_datasets_are_compared_with_a_warning(
    capsys: pytest.CaptureFixture[str], others: dict[str, str | None], said: str
) -> None:
    print_comparison([OVER_A_DATASET, replace(OVER_A_DATASET, **dict[str, Any](others))])
    printed = capsys.readouterr().out
    assert said in printed
    assert ("warning" in printed) is bool(said)


@pytest.mark.parametrize(
    ("panels", "said"),
    [
        ((b"one", b"one"), ""),
        ((b"one", b"two"), "their evaluation sets differ"),
        ((b"one", None), "their evaluation sets are not known to be the same"),
        ((None, None), "their evaluation sets are not known to be the same"),
    ],
)
def test_jobs_of_different_tasks_compare_on_one_evaluation_set(
    panels: tuple[bytes | None, ...], said: str
) -> None:
    found = why_not_comparable([("7a", "da"), ("7b", "da")], panels)
    assert said in found
    assert bool(found) is bool(said)

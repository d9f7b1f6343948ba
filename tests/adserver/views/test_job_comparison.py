"""Jobs side by side: what none of them has takes no line."""

from dataclasses import replace
from typing import Any

import pytest

from adserver.views.job_comparison import ComparedJobs, _ComparedJob, print_comparison, why_not_comparable

WITHOUT_HELPERS = _ComparedJob(
    job="0a" * 16,
    name="",
    task="",
    task_id=None,
    dataset_id=None,
    eval_set=None,
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


def test_many_jobs_have_tables_below_each_other_with_the_same_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # test workers have 80
    jobs = [replace(WITHOUT_HELPERS, job=f"{number:02x}" * 16) for number in range(11)]
    jobs[7] = replace(jobs[7], loss=0.25)
    print_comparison(jobs)
    for text in (capsys.readouterr().out, repr(ComparedJobs(jobs))):
        tables = [table.splitlines() for table in text.strip().split("\n\n")]
        assert [len(lines[0].split()) - 1 for lines in tables] == [5, 5, 1]
        assert [[line.split()[0] for line in lines] for lines in tables] == 3 * [
            ["job", "model", "state", "rounds", "rounds", "loss"]
        ]
        assert max(map(len, text.splitlines())) <= 88
    assert ComparedJobs(jobs)._repr_html_().count("<table") == 3
    assert len(repr(ComparedJobs([])).splitlines()) == 1


OVER_A_DATASET = replace(
    WITHOUT_HELPERS,
    task="clicks",
    task_id="7a" * 32,
    dataset_id="da" * 32,
    eval_set="e5" * 32,
    model="3d" * 32,
    auc=0.7,
)


def test_task_dataset_evaluation_set_and_model_of_each_job_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_comparison([OVER_A_DATASET, OVER_A_DATASET])
    said = capsys.readouterr().out
    shown = {line.split("  ")[0]: line.split()[-1] for line in said.splitlines()}
    assert {name: shown[name] for name in ("task", "task id", "dataset id", "eval set", "model")} == {
        "task": "clicks",
        "task id": "7a" * 6,
        "dataset id": "da" * 6,
        "eval set": "e5" * 6,
        "model": "3d" * 6,
    }
    assert "warning" not in said


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"eval_set": "e6" * 32}, "warning: these jobs have different evaluation sets"),
        ({"dataset_id": "db" * 32}, "warning: these jobs are over different datasets"),
        # Of a task on one evaluation set nothing keeps figures from being compared
        ({"task_id": "7b" * 32}, ""),
        # Without an evaluation set there are no figures to compare
        ({"dataset_id": None, "eval_set": None, "auc": None}, ""),
    ],
)
def test_jobs_of_different_evaluation_sets_or_datasets_are_compared_with_a_warning(
    capsys: pytest.CaptureFixture[str], others: dict[str, str | None], said: str
) -> None:
    print_comparison([OVER_A_DATASET, replace(OVER_A_DATASET, **dict[str, Any](others))])
    printed = capsys.readouterr().out
    assert said in printed
    assert ("warning" in printed) is bool(said)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([("da", "e5"), ("da", "e5")], ""),
        ([("da", "e5"), ("db", "e5")], "over different datasets"),
        # An evaluation set that differs says more than a dataset that does
        ([("da", "e5"), ("db", "e6")], "different evaluation sets"),
        ([("da", None), ("db", None), ("dc", "e5")], ""),
        ([], ""),
    ],
)
def test_figures_compare_on_one_evaluation_set_after_training_on_one_dataset(
    jobs: list[tuple[str, str | None]], said: str
) -> None:
    found = why_not_comparable(jobs)
    assert said in found
    assert bool(found) is bool(said)

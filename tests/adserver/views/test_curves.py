"""The picture of a job's curves."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.round_figures import RoundFigures
from adserver.views import curves
from adserver.views.curves import _draw_panel, _png, _title, write_plot
from maskedlark.errors import InvalidTask
from maskedlark.terminal.pictures import as_png, new_figure
from tests.adserver.job_world import plan_for, sealed

HISTORY = tuple(
    RoundFigures(
        rounds_done=number,
        finished_at_s=1000.0 + number,
        gradient_norm=1 / (number + 3),
        noise_to_signal=0.3 if number % 2 else None,
        loss=0.7 - 0.01 * number if number % 5 == 0 else None,
        accuracy=0.5 + 0.01 * number if number % 5 == 0 else None,
    )
    for number in range(1, 21)
)


@pytest.mark.parametrize(
    "history",
    [
        HISTORY,
        (),
        HISTORY[:1],
        tuple(RoundFigures(rounds_done=number, finished_at_s=0.0, gradient_norm=1.0) for number in range(3)),
        tuple(RoundFigures(rounds_done=number, finished_at_s=0.0, loss=1.0) for number in range(3)),
    ],
    ids=["all", "none", "one", "no evaluation", "no accuracy"],
)
def test_a_picture_is_drawn_of_whatever_there_is(history: tuple[RoundFigures, ...]) -> None:
    assert _png(history, "a title\nof two lines", "norm").startswith(b"\x89PNG")


def test_the_loss_that_chooses_weights_is_drawn_where_there_is_one() -> None:
    def drawn(history: tuple[RoundFigures, ...]) -> list[str]:
        axes = new_figure(4, 3).subplots()
        _draw_panel(axes, history, ("loss", "loss"), {"accuracy": "accuracy"})
        return [str(line.get_label()) for line in axes.get_lines()]

    assert drawn(HISTORY) == ["loss"]
    assert drawn(tuple(replace(one, calibrated_loss=0.5) for one in HISTORY)) == [
        "calibrated loss",
        "loss",
    ]


def test_auc_is_drawn_beside_accuracy_where_there_is_one() -> None:
    def drawn(history: tuple[RoundFigures, ...]) -> tuple[str, list[str]]:
        figure = new_figure(4, 3)
        _draw_panel(figure.subplots(), history, ("loss", "loss"), {"accuracy": "accuracy", "auc": "AUC"})
        right = figure.axes[1]
        return right.get_ylabel(), [str(line.get_label()) for line in right.get_lines()]

    assert drawn(HISTORY) == ("accuracy", ["accuracy"])
    assert drawn(tuple(replace(one, auc=0.7) for one in HISTORY)) == ("accuracy, AUC", ["accuracy", "AUC"])


def test_a_picture_goes_into_a_png_or_nowhere(tmp_path: Path) -> None:
    job = JobRecord(
        plan=plan_for(sealed()),
        submitted_at_s=0.0,
        state=JobState.DONE,
        stop=None,
        rounds_done=20,
        is_closed=True,
        rounds_charged=20,
        lease_until_s=0.0,
    )
    write_plot(job, HISTORY, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidTask, match=r"\.png"):
        write_plot(job, HISTORY, tmp_path / "curves.svg")


def test_a_long_title_lies_within_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        figures.append(figure)
        return as_png(figure)

    monkeypatch.setattr(curves, "as_png", keep)
    title = _title(plan_for(sealed(mechanism="gaussian"), noise_multiplier=29.2))
    _png(HISTORY, title.replace("\n", f" {'of a project ' * 9}\n") + f" batch {7_198:,}", "norm")
    [figure] = figures
    [drawn] = [one for one in figure.texts if "batch 7,198" in one.get_text()]
    shown, whole = drawn.get_window_extent(), figure.bbox
    assert shown.x0 >= whole.x0
    assert shown.x1 <= whole.x1


def test_the_title_says_what_the_job_costs() -> None:
    noisy = _title(plan_for(sealed(mechanism="gaussian"), noise_multiplier=2.0))
    assert "epsilon" in noisy
    assert "delta 1e-05" in noisy
    assert "no noise" in _title(plan_for(sealed()))

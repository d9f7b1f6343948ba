"""How long a rehearsal will still take is told where there is no terminal, too."""

import pytest

from adserver.views.rehearsal import training_progress


def test_a_log_gets_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 59.0, 60.0, 90.0, 121.0, 181.0])
    with training_progress("rehearsing", is_shown=True, clock=lambda: next(times)) as show:
        for done in (5, 6, 9, 12):
            show(done, 24)
        show(1, 100)
    assert capsys.readouterr().err.splitlines() == [
        "rehearsing: 25% after 1 min, about 3 min left",
        "rehearsing: 50% after 2 min, about 3 min left",
        "rehearsing: 1% after 3 min",
    ]


def test_nothing_is_told_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    with training_progress("rehearsing", is_shown=False, clock=lambda: 1e9) as show:
        show(1, 2)
    assert capsys.readouterr().err == ""

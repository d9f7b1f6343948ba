"""Jobs side by side: what none of them has takes no line."""

from dataclasses import replace

import pytest

from adserver.views.job_comparison import _ComparedJob, print_comparison

WITHOUT_HELPERS = _ComparedJob(
    job="0a" * 16,
    name="",
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
    assert lines == ["job", "state", "rounds", "rounds"]
    print_comparison([WITHOUT_HELPERS, replace(WITHOUT_HELPERS, loss=0.0)])
    assert "loss" in capsys.readouterr().out

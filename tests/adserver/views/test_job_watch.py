"""How `job watch` waits."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from adserver.client.local import LocalAdServer
from adserver.records.job_state import JobState
from adserver.records.round_figures import RoundFigures
from adserver.store.jobs import figures_row
from adserver.store.schema import job_rounds, jobs
from adserver.views.job import watch
from maskedlark.errors import HelperUnavailable
from tests.adserver.job_world import Site, plan_for, sealed

OF = sealed()
NO_HELPERS: Any = ()


def source(site: Site) -> LocalAdServer:
    return LocalAdServer.over(site.engine, NO_HELPERS, data=site.data_dir)


def test_a_job_is_asked_about_less_often_the_longer_it_takes(tmp_path: Path) -> None:
    site, pauses = Site(tmp_path, OF), list[float]()
    job_id = site.submit(plan_for(OF))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            with site.engine.begin() as connection:
                connection.execute(update(jobs).values(state=JobState.DONE))

    assert (
        watch(
            LocalAdServer.over(site.engine, NO_HELPERS, data=tmp_path), job_id, is_shown=False, sleep=sleep
        ).state
        is JobState.DONE
    )
    assert pauses == sorted(pauses)
    assert len(pauses) == 20
    assert pauses[0] < 0.3
    assert pauses[-1] == pauses[-2] == 1.0
    site.engine.dispose()


@pytest.mark.parametrize(("asks", "drawn"), [("1", True), (None, False)])
def test_a_bar_is_drawn_where_it_can_be_seen_only(
    asks: str | None, drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, written = Site(tmp_path, OF), io.StringIO()
    job_id = site.submit(plan_for(OF))
    with site.engine.begin() as connection:
        connection.execute(update(jobs).values(state=JobState.DONE))
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if asks:
        monkeypatch.setenv("FORCE_COLOR", asks)
    watch(source(site), job_id, is_shown=True)
    assert ("done" in written.getvalue()) is drawn
    site.engine.dispose()


def test_what_a_helper_said_is_text_next_to_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, written = Site(tmp_path, OF), io.StringIO()
    job_id = site.submit(plan_for(OF))
    said = str(HelperUnavailable("[/red] [link=http://evil]here \x9b31m\u202e"))
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    with site.engine.begin() as connection:
        connection.execute(update(jobs).values(state=JobState.WAITING, reason="x", cause=said))

    def sleep(_seconds: float) -> None:
        raise InterruptedError  # the bar is drawn once more when it ends

    with pytest.raises(InterruptedError):
        watch(source(site), job_id, is_shown=True, sleep=sleep)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue())
    assert "[/red] [link=http://evil]here \\x9b31m\\u202e" in shown
    assert "\x1b]8" not in written.getvalue()  # a link's sequence
    site.engine.dispose()


def test_the_bar_has_the_calibrated_loss_next_to_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, written = Site(tmp_path, OF), io.StringIO()
    job_id = site.submit(plan_for(OF))
    figures = RoundFigures(rounds_done=1, finished_at_s=1.0, loss=0.3552, calibrated_loss=0.29, accuracy=0.9)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with site.engine.begin() as connection:
        connection.execute(insert(job_rounds).values(figures_row(job_id, figures)))
        connection.execute(update(jobs).values(state=JobState.DONE, rounds_done=1))
    watch(source(site), job_id, is_shown=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue())
    assert "loss 0.3552, calibrated loss 0.2900, accuracy 0.9000" in shown
    site.engine.dispose()


@pytest.mark.parametrize(
    ("changes", "now_s", "told"),
    [
        ({}, 3.0, []),
        ({}, 60.0, ["waits for `adserver serve`, which has not taken it yet"]),
        ({"state": JobState.RUNNING, "lease_until_s": 58.0}, 60.0, []),
        (
            {"state": JobState.RUNNING, "lease_until_s": 50.0},
            60.0,
            ["`adserver serve`, which has ended"],
        ),
        ({"state": JobState.WAITING, "reason": "x", "cause": "helper 0 is away"}, 60.0, ["helper 0 is away"]),
    ],
)
def test_what_a_job_waits_for_is_told_once(
    changes: dict[str, Any], now_s: float, told: list[str], tmp_path: Path
) -> None:
    site, said, moments = Site(tmp_path, OF), list[str](), iter([0.0])
    job_id = site.submit(plan_for(OF))
    with site.engine.begin() as connection:
        connection.execute(update(jobs).values(**changes) if changes else update(jobs).values(rounds_done=0))
    polls = iter(range(3))

    def sleep(_seconds: float) -> None:
        if next(polls, None) is None:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        watch(
            source(site),
            job_id,
            is_shown=False,
            tell=said.append,
            sleep=sleep,
            clock=lambda: next(moments, now_s),
        )
    assert len(said) == len(told)
    assert all(part in line for part, line in zip(told, said, strict=True))
    site.engine.dispose()


def test_a_job_behind_another_says_so_once_and_not_that_no_server_runs(tmp_path: Path) -> None:
    """Before, it said after five seconds that `adserver serve` had not taken it."""
    site, now, told = Site(tmp_path, OF), [0.0], list[str]()
    first = site.submit(plan_for(OF, job_id=bytes([1]) * 16))
    second = site.submit(plan_for(OF, job_id=bytes([2]) * 16))

    def change(job_id: bytes, **values: Any) -> None:
        with site.engine.begin() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(values))

    change(first, state=JobState.RUNNING, lease_until_s=1e9, name="the \x1b[31mfirst")

    def sleep(_seconds: float) -> None:
        now[0] += 1
        if now[0] == 20:
            change(first, state=JobState.DONE)
            change(second, state=JobState.DONE)

    watch(source(site), second, is_shown=False, tell=told.append, sleep=sleep, clock=lambda: now[0])
    assert told == ["job 020202020202 waits behind job 010101010101, the \\x1b[31mfirst"]
    site.engine.dispose()


def test_behind_a_job_whose_server_has_ended_the_server_is_named(tmp_path: Path) -> None:
    site, now, told = Site(tmp_path, OF), [100.0], list[str]()
    first = site.submit(plan_for(OF, job_id=bytes([1]) * 16))
    second = site.submit(plan_for(OF, job_id=bytes([2]) * 16))
    with site.engine.begin() as connection:
        running = {"state": JobState.RUNNING, "lease_until_s": 90.0}
        connection.execute(update(jobs).where(jobs.c.job_id == first).values(running))

    def sleep(_seconds: float) -> None:
        now[0] += 1
        if now[0] == 120.0:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        watch(source(site), second, is_shown=False, tell=told.append, sleep=sleep, clock=lambda: now[0])
    assert [line.partition(":")[0] for line in told] == [
        "job 020202020202 waits for `adserver serve`, which has not taken it yet"
    ]
    site.engine.dispose()

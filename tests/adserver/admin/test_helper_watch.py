"""Helpers are watched: what they say is kept, one that is silent stays known, keys have an age."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from adserver.admin import helper_watch
from adserver.admin.helper_watch import EVERY_S, HelperWatch
from adserver.client.local import LocalAdServer
from adserver.peers.replies import HelperStatus
from adserver.store.database import create_tables
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import SetClock
from tests.adserver.painted import OF
from tests.builders import NOW
from tests.patience import HANGS_S


class Watched:
    """A helper that answers, or does not."""

    def __init__(self, role: int) -> None:
        self.address = f"127.0.0.1:710{role}"
        self.role = role
        self.error: Exception | None = None
        self.not_well = ""
        self.keys = OF.of.bundle.key_lists[role]
        self.was_asked = Event()

    def status(self) -> HelperStatus:
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        return HelperStatus(
            version="0.1.0",
            identity=OF.of.keys[self.role].identity("north"),
            keys=self.keys,
            software_digest=bytes(32),
            tasks=None,
            datasets=None,
            open_jobs=None,
            rounds_answered=None,
            not_well=self.not_well,
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(f"sqlite:///{tmp_path / 'a.sqlite3'}")
    create_tables(opened)
    yield opened
    opened.dispose()


def watch_of(engine: Engine, clock: SetClock) -> Any:
    helpers = (Watched(0), Watched(1))
    ticks = iter(range(1_000))
    return helpers, HelperWatch(engine, helpers, clock, elapsed=lambda: 0.25 * next(ticks))


def test_what_a_helper_says_is_kept_with_how_long_it_took(engine: Engine) -> None:
    _, watch = watch_of(engine, SetClock())
    assert [sight.is_well for sight in watch.sights()] == [None, None]
    watch.look(0)
    first, second = watch.sights()
    assert (first.is_well, first.latency_ms, first.answered_at, second.is_well) == (True, 250.0, NOW, None)
    assert first.status.identity.name == "north"
    assert [key.key_id for key in first.keys] == [1]


def test_a_helper_that_falls_silent_keeps_what_is_known_of_it(engine: Engine) -> None:
    helpers, watch = watch_of(engine, SetClock())
    watch.look(1)
    helpers[1].error = HelperUnavailable("it does not answer")
    watch.look(1)
    sight = watch.sights()[1]
    assert (sight.is_well, sight.cause, sight.answered_at) == (False, "it does not answer", NOW)
    assert sight.status is not None
    helpers[1].error = None
    watch.look(1)
    assert (watch.sights()[1].is_well, watch.sights()[1].cause) == (True, "")


def test_a_helper_that_says_that_it_refuses_calls_is_not_well(engine: Engine) -> None:
    helpers, watch = watch_of(engine, SetClock())
    helpers[0].not_well = "helper at 127.0.0.1:7100 is not well: this helper's ledger is older"
    watch.look(0)
    sight = watch.sights()[0]
    assert (sight.is_well, sight.cause, sight.answered_at) == (False, helpers[0].not_well, NOW)


def key_list_until(role: int, not_after: int) -> SignedKeyList:
    keys = OF.of.keys[role]
    return SignedKeyList.sign(keys.signing, (keys.opening.public(),), not_after=not_after)


def test_a_helper_whose_look_hangs_is_not_well_after_a_few_intervals(engine: Engine) -> None:
    at_s = [0.0]
    watch = HelperWatch(engine, (Watched(0), Watched(1)), SetClock(), elapsed=lambda: at_s[0])
    watch.look(0)
    at_s[0] = 3 * EVERY_S
    assert [sight.is_well for sight in watch.sights()] == [True, None]
    at_s[0] += 0.1
    silent = watch.sights()
    assert [sight.is_well for sight in silent] == [False, None]
    assert silent[0].cause == "no answer from the helper at 127.0.0.1:7100 since 2027-01-15 08:00 UTC"
    at_s[0] += 9.0
    assert watch.sights() == silent
    watch.look(0)
    assert (watch.sights()[0].is_well, watch.sights()[0].cause) == (True, "")


def test_what_a_helper_says_is_kept_though_the_database_is_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers, watch = watch_of(engine, SetClock())
    watch.look(0)
    keys = watch.sights()[0].keys

    def fail(*_: Any, **__: Any) -> Any:
        raise OperationalError("", {}, Exception("database is locked"))

    monkeypatch.setattr(helper_watch, "first_seen", fail)
    helpers[0].not_well = "helper at 127.0.0.1:7100 is not well: this helper's ledger is older"
    with pytest.raises(OperationalError):
        watch.look(0)
    sight = watch.sights()[0]
    assert (sight.is_well, sight.cause, sight.keys) == (False, helpers[0].not_well, keys)


def test_a_watch_survives_any_error_and_says_that_the_helper_is_not_well(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_watch, "EVERY_S", 0.01)
    helpers, watch = watch_of(engine, SetClock())
    watch.look(0)
    helpers[0].error = ValueError("a secret")
    with pytest.raises(ValueError, match="a secret"):
        watch.look(0)
    cause = "the look at the helper at 127.0.0.1:7100 failed (ValueError): see the log"
    assert (watch.sights()[0].is_well, watch.sights()[0].cause) == (False, cause)
    watch.start()
    try:
        for _ in range(3):
            helpers[0].was_asked.clear()
            assert helpers[0].was_asked.wait(HANGS_S)
    finally:
        watch.stop()


def test_a_helper_whose_keys_have_ended_is_not_well(engine: Engine) -> None:
    helpers, watch = watch_of(engine, SetClock())
    for role, until in enumerate((NOW, NOW - 1)):
        helpers[role].keys = key_list_until(role, until)
        watch.look(role)
    assert [sight.is_well for sight in watch.sights()] == [True, False]
    assert "its list of HPKE keys ended at 2027-01-15 07:59 UTC" in watch.sights()[1].cause


@pytest.mark.parametrize("role", [0, 1])
def test_a_status_shows_the_other_helper_whatever_one_answers(
    engine: Engine, tmp_path: Path, role: int
) -> None:
    helpers: Any = (Watched(0), Watched(1))
    with LocalAdServer.over(engine, helpers, data=tmp_path) as server:
        helpers[role].error = JobRefused(JobReason.BAD_ANSWER, "it sends nonsense")
        found = server.helpers()
        assert [one.is_well for one in found] == [role != 0, role != 1]
        assert found[role].cause == "it sends nonsense"
        helpers[role].error, helpers[role].keys = None, key_list_until(role, 1)
        found = server.helpers()
    assert [one.is_well for one in found] == [role != 0, role != 1]
    assert "ended at 1970-01-01 00:00 UTC" in found[role].cause


def test_a_key_is_as_old_as_its_first_sight_also_after_a_restart(engine: Engine) -> None:
    clock = SetClock()
    _, watch = watch_of(engine, clock)
    watch.look(0)
    clock.now_s += 86_400
    _, later = watch_of(engine, clock)
    later.look(0)
    assert [key.first_seen_at for key in later.sights()[0].keys] == [NOW]


def test_a_running_watch_asks_both(engine: Engine) -> None:
    helpers, watch = watch_of(engine, SetClock())
    watch.start()
    try:
        assert all(helper.was_asked.wait(HANGS_S) for helper in helpers)
    finally:
        watch.stop()

"""Helpers are watched: what they say is kept, one that is silent stays known, keys have an age."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine

from adserver.admin.helper_watch import HelperWatch
from adserver.peers.replies import HelperStatus
from adserver.store.database import create_tables
from maskedlark.errors import HelperUnavailable
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
        self.was_asked = Event()

    def status(self) -> HelperStatus:
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        return HelperStatus(
            version="0.1.0",
            identity=OF.of.keys[self.role].identity("north"),
            keys=OF.of.bundle.key_lists[self.role],
            numerics_digest=bytes(32),
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

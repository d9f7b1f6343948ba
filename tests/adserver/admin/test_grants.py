"""A grant is believed for a moment by who looks, and no longer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adserver.admin.grants import BELIEVED_S, Grants
from adserver.records.access import GrantKind, Scope
from adserver.store.access import AccessStore
from adserver.store.database import create_tables, default_url
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import SetClock

TOKEN, SESSION = GrantKind.TOKEN, GrantKind.SESSION


@dataclass
class Kept:
    """A store of grants and what stands before it, by one clock."""

    clock: SetClock
    store: AccessStore
    grants: Grants

    def made(self, kind: GrantKind = TOKEN) -> str:
        return self.store.make(kind, Scope.READ, name="a test", lasts_s=10.0)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    engine, clock = open_database(default_url(tmp_path)), SetClock()
    create_tables(engine)
    store = AccessStore(engine, clock)
    yield Kept(clock, store, Grants(store, elapsed=clock))
    engine.dispose()


def test_what_was_found_is_at_hand_for_a_moment(kept: Kept) -> None:
    secret = kept.made()
    assert kept.grants.at_hand(secret, TOKEN) is None
    found = kept.grants.find(secret, TOKEN)
    assert found is not None
    assert kept.grants.at_hand(secret, TOKEN) == found
    kept.clock.now_s += BELIEVED_S
    assert kept.grants.at_hand(secret, TOKEN) is None
    assert kept.grants.find(secret, TOKEN) == found


def test_another_secret_or_kind_is_not_at_hand(kept: Kept) -> None:
    secret = kept.made()
    kept.grants.find(secret, TOKEN)
    assert kept.grants.at_hand(secret, SESSION) is None
    assert kept.grants.at_hand(kept.made(), TOKEN) is None
    assert kept.grants.at_hand("", TOKEN) is None


def test_what_is_revoked_elsewhere_is_over_when_it_is_asked_for(kept: Kept) -> None:
    secret = kept.made()
    found = kept.grants.find(secret, TOKEN)
    assert found is not None
    kept.store.end(found)
    assert kept.grants.find(secret, TOKEN) is None
    assert kept.grants.at_hand(secret, TOKEN) is None


def test_who_logs_out_here_is_out_at_once(kept: Kept) -> None:
    secret = kept.made(SESSION)
    found = kept.grants.find(secret, SESSION)
    assert found is not None
    kept.grants.end(found)
    assert kept.grants.at_hand(secret, SESSION) is None


def test_strangers_take_no_memory_and_many_grants_a_bounded_one(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adserver.admin.grants._MOST", 3)
    for _ in range(5):
        assert kept.grants.find("mlt_wrong", TOKEN) is None
    secrets = [kept.made() for _ in range(4)]
    for secret in secrets:
        kept.grants.find(secret, TOKEN)
    assert [kept.grants.at_hand(one, TOKEN) is None for one in secrets] == [True, True, True, False]

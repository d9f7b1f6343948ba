"""Grants of access: what is stored tells no secret, and what has ended opens nothing. On both engines."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, select

from adserver.records.access import GrantKind, Scope, digest_of
from adserver.store.access import LOGIN_S, SESSION_S, AccessStore
from adserver.store.database import create_tables
from adserver.store.schema import access_grants
from maskedlark.errors import InvalidTask
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import SetClock

TOKEN, LOGIN, SESSION = GrantKind.TOKEN, GrantKind.LOGIN, GrantKind.SESSION


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_database(database_url)
    create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(engine: Engine, clock: SetClock) -> AccessStore:
    return AccessStore(engine, clock)


def test_a_token_is_found_by_its_secret_alone(store: AccessStore) -> None:
    secret = store.make(TOKEN, Scope.READ, name="graphs", lasts_s=60)
    found = store.find(secret, [TOKEN])
    assert found is not None
    assert (found.name, found.scope) == ("graphs", Scope.READ)
    assert store.find(secret, [SESSION]) is None
    assert store.find(secret[:-1], [TOKEN]) is None
    assert store.find("", [TOKEN]) is None


def test_no_column_holds_a_secret(store: AccessStore, engine: Engine) -> None:
    secret = store.make(TOKEN, Scope.OPERATE, name="cron", lasts_s=60)
    with engine.connect() as connection:
        row = connection.execute(select(access_grants)).one()
    assert secret.encode() not in b"".join(str(value).encode() for value in row)
    assert bytes(row.digest) == digest_of(secret)


def test_what_has_ended_opens_nothing_and_goes(store: AccessStore, clock: SetClock, engine: Engine) -> None:
    secret = store.make(TOKEN, Scope.READ, name="old", lasts_s=60)
    clock.now_s += 60
    assert store.find(secret, [TOKEN]) is None
    assert store.all([TOKEN]) == []
    store.make(TOKEN, Scope.READ, name="new", lasts_s=60)
    with engine.connect() as connection:
        assert connection.execute(select(access_grants.c.name)).scalars().all() == ["new"]


def test_a_login_link_logs_in_once(store: AccessStore) -> None:
    secret = store.make(LOGIN, Scope.READ, name="browser", lasts_s=LOGIN_S)
    session = store.log_in(secret)
    assert session is not None
    found = store.find(session, [SESSION])
    assert found is not None
    assert found.scope is Scope.READ
    assert found.expires_at - found.created_at == SESSION_S
    assert store.log_in(secret) is None


def test_a_login_link_lasts_ten_minutes_and_a_session_no_longer_than_a_day() -> None:
    assert LOGIN_S == 10 * 60
    assert 60 * 60 <= SESSION_S <= 24 * 60 * 60


def test_of_many_who_use_a_login_link_at_once_one_is_in(store: AccessStore) -> None:
    secret = store.make(LOGIN, Scope.READ, name="browser", lasts_s=LOGIN_S)
    with ThreadPoolExecutor(8) as threads:
        sessions = [one for one in threads.map(store.log_in, [secret] * 8) if one]
    assert len(sessions) == 1


def test_a_token_is_revoked_by_the_start_of_its_id(store: AccessStore) -> None:
    first, second = (store.make(TOKEN, Scope.READ, name=name, lasts_s=60) for name in ("a", "b"))
    grant = store.find(first, [TOKEN])
    assert grant is not None
    assert store.revoke(grant.grant_id[:8], [TOKEN]) == grant
    assert store.find(first, [TOKEN]) is None
    assert store.find(second, [TOKEN]) is not None


def test_a_token_is_revoked_by_its_name_if_no_other_has_it(store: AccessStore) -> None:
    for name in ("ci", "ci runner", "twin", "twin"):
        store.make(TOKEN, Scope.READ, name=name, lasts_s=60)
    assert store.revoke("ci", [TOKEN]).name == "ci"
    twins = [one for one in store.all([TOKEN]) if one.name == "twin"]
    with pytest.raises(InvalidTask, match="2 tokens and sessions have") as refusal:
        store.revoke("twin", [TOKEN])
    assert all(one.grant_id in str(refusal.value) for one in twins)
    # Nobody keeps a token from being revoked by calling another one by its id
    store.make(TOKEN, Scope.READ, name=twins[0].grant_id, lasts_s=60)
    assert store.revoke(twins[0].grant_id, [TOKEN]) == twins[0]


@pytest.mark.parametrize("named", ["", "zz"])
def test_a_token_that_is_not_named_exactly_stays(store: AccessStore, named: str) -> None:
    store.make(TOKEN, Scope.READ, name="a", lasts_s=60)
    with pytest.raises(InvalidTask, match="token list"):
        store.revoke(named, [TOKEN])
    assert len(store.all([TOKEN])) == 1


def test_operate_allows_reading_and_reading_allows_no_more() -> None:
    assert Scope.OPERATE.allows(Scope.READ)
    assert Scope.OPERATE.allows(Scope.OPERATE)
    assert Scope.READ.allows(Scope.READ)
    assert not Scope.READ.allows(Scope.OPERATE)


def test_a_name_is_kept_in_characters_that_every_database_and_terminal_takes(store: AccessStore) -> None:
    secret = store.make(TOKEN, Scope.READ, name="gra\x00fa\x1b[31mna\ud800", lasts_s=60)
    grant = store.find(secret, [TOKEN])
    assert grant is not None
    assert grant.name.isprintable()
    assert grant.name.startswith("gra")

"""`adserver token` and `adserver dashboard login`: secrets are told once, and end when they are told to."""

import json
import re
import time
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.dashboard.address import dashboard_url
from adserver.records.access import GrantKind, Scope
from adserver.store.access import LOGIN_S, SESSION_S, AccessStore
from adserver.store.database import create_tables, default_url
from maskedlark.errors import InvalidTask
from maskedlark.runtime.database import open_database

RUNNER: Final = CliRunner()
DAY_S: Final = 86_400.0


def ran(folder: Path, *command: str) -> str:
    done = RUNNER.invoke(app, [*command, "--data", str(folder)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output.strip()


@pytest.fixture
def store(tmp_path: Path) -> AccessStore:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    return AccessStore(engine, time.time)


def test_a_token_is_told_once_and_reads_by_default(tmp_path: Path, store: AccessStore) -> None:
    secret = ran(tmp_path, "token", "create", "--name", "grafana")
    assert re.fullmatch(r"mlt_[\w-]{43}", secret)
    grant = store.find(secret, [GrantKind.TOKEN])
    assert grant is not None
    assert (grant.scope, grant.name, grant.expires_at - grant.created_at) == (
        Scope.READ,
        "grafana",
        90 * DAY_S,
    )
    for listed in (ran(tmp_path, "token", "list"), ran(tmp_path, "token", "list", "--json")):
        assert grant.grant_id in listed
        assert secret not in listed
        assert secret[4:20] not in listed


@pytest.mark.parametrize("scope", [Scope.OPERATE, Scope.TASKS])
def test_a_token_does_what_it_is_said_to_and_for_as_long(
    tmp_path: Path, store: AccessStore, scope: Scope
) -> None:
    secret = ran(tmp_path, "token", "create", "--name", "ci", "--scope", scope.value, "--days", "2")
    grant = store.find(secret, [GrantKind.TOKEN])
    assert grant is not None
    assert (grant.scope, grant.expires_at - grant.created_at) == (scope, 2 * DAY_S)


@pytest.mark.parametrize("wrong", [["--scope", "all"], ["--days", "0"], ["--days", "nan"], ["--days", "9e9"]])
def test_what_no_token_can_be_is_refused(tmp_path: Path, wrong: list[str]) -> None:
    done = RUNNER.invoke(app, ["token", "create", "--name", "x", *wrong, "--data", str(tmp_path)])
    assert done.exit_code != 0
    assert "mlt_" not in done.output


@pytest.mark.parametrize(("limit", "shown"), [(1, [3]), (2, [2, 3]), (4, [0, 1, 2, 3]), (50, [0, 1, 2, 3])])
def test_the_newest_entries_of_the_audit_log_are_shown(
    tmp_path: Path, store: AccessStore, limit: int, shown: list[int]
) -> None:
    for name in "abc":
        ran(tmp_path, "token", "create", "--name", name)
    listed = json.loads(ran(tmp_path, "audit", "list", "--limit", str(limit), "--json"))
    assert [one["sequence"] for one in listed] == shown


def test_the_acts_that_are_asked_for_are_shown_alone(tmp_path: Path, store: AccessStore) -> None:
    for name in "abc":
        ran(tmp_path, "token", "create", "--name", name)
    newest = json.loads(
        ran(tmp_path, "audit", "list", "--act", "create_token", "--act", "log_in", "--limit", "2", "--json")
    )
    assert [(one["act"], one["subject"]["name"]) for one in newest] == [
        ("create_token", "b"),
        ("create_token", "c"),
    ]
    assert json.loads(ran(tmp_path, "audit", "list", "--act", "log_in", "--json")) == []
    done = RUNNER.invoke(app, ["audit", "list", "--act", "token", "--data", str(tmp_path)])
    assert isinstance(done.exception, InvalidTask)
    assert "expected one of abandon_dataset" in str(done.exception)


def test_a_revoked_token_is_over(tmp_path: Path, store: AccessStore) -> None:
    kept, ended = (ran(tmp_path, "token", "create", "--name", name) for name in ("kept", "ended"))
    grant = store.find(ended, [GrantKind.TOKEN])
    assert grant is not None
    assert "is revoked" in ran(tmp_path, "token", "revoke", grant.grant_id)
    assert store.find(ended, [GrantKind.TOKEN]) is None
    assert store.find(kept, [GrantKind.TOKEN]) is not None
    assert [one["name"] for one in json.loads(ran(tmp_path, "token", "list", "--json"))] == ["kept"]


@pytest.mark.parametrize("identifier", ["", "ff", "zz"])
def test_only_one_token_by_its_id_is_revoked(tmp_path: Path, store: AccessStore, identifier: str) -> None:
    secret = ran(tmp_path, "token", "create", "--name", "only")
    grant = store.find(secret, [GrantKind.TOKEN])
    assert grant is not None
    if grant.grant_id.startswith("ff"):
        identifier = "00"
    done = RUNNER.invoke(app, ["token", "revoke", identifier, "--data", str(tmp_path)])
    assert isinstance(done.exception, InvalidTask)
    assert store.find(secret, [GrantKind.TOKEN]) is not None


def test_a_browser_is_logged_out_by_the_id_of_its_session(tmp_path: Path, store: AccessStore) -> None:
    session = store.make(GrantKind.SESSION, Scope.OPERATE, name="dashboard", lasts_s=SESSION_S)
    (listed,) = json.loads(ran(tmp_path, "token", "list", "--json"))
    assert (listed["kind"], listed["scope"]) == ("session", "operate")
    ran(tmp_path, "token", "revoke", listed["id"])
    assert store.find(session, [GrantKind.SESSION]) is None


def test_a_login_link_waits_for_the_first_start_of_a_dashboard_if_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(_: float) -> None:
        (tmp_path / "dashboard.address").write_text("http://127.0.0.1:7300\n")

    with pytest.raises(InvalidTask):
        dashboard_url(tmp_path / ("x" * 300))
    monkeypatch.setattr(time, "sleep", starts)
    done = RUNNER.invoke(app, ["dashboard", "login", "--data", str(tmp_path)])
    assert isinstance(done.exception, InvalidTask)
    assert ran(tmp_path, "dashboard", "login", "--wait").startswith("http://127.0.0.1:7300/login?code=")


def test_a_login_link_is_of_the_server_that_ran_and_works_once(tmp_path: Path, store: AccessStore) -> None:
    done = RUNNER.invoke(app, ["dashboard", "login", "--data", str(tmp_path)])
    assert isinstance(done.exception, InvalidTask)
    (tmp_path / "dashboard.address").write_text("https://ads.example:8443\n")
    link = ran(tmp_path, "dashboard", "login", "--scope", "read")
    url, _, code = link.partition("/login?code=")
    assert url == "https://ads.example:8443"
    grant = store.find(code, [GrantKind.LOGIN])
    assert grant is not None
    assert (grant.scope, grant.expires_at - grant.created_at) == (Scope.READ, LOGIN_S)
    session = store.log_in(code)
    assert session is not None
    assert store.log_in(code) is None
    found = store.find(session, [GrantKind.SESSION])
    assert found is not None
    assert found.scope is Scope.READ

"""Tokens are managed over the API by a grant of their own scope, which cannot make its like or its heir."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adserver.admin.guarded_route import PREFIX
from adserver.client import local
from adserver.client.remote import RemoteAdServer
from adserver.records.access import GrantKind, Scope
from maskedlark.audit_log import verify_lines
from maskedlark.errors import InvalidTask, JobReason, JobRefused, MaskedLarkError
from tests.patience import HANGS_S

HOUR_DAYS = 1 / 24
"""How long a test's own grant lasts."""


@pytest.fixture
def manager(behind: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteAdServer]:
    monkeypatch.setattr(local, "time", SimpleNamespace(time=behind.of.clock))  # one clock for all grants
    with RemoteAdServer(url=behind.origin, token=behind.of.grant(GrantKind.TOKEN, Scope.TOKENS)) as server:
        yield server


def test_a_token_is_created_listed_and_revoked_with_immediate_effect(
    behind: Any, manager: RemoteAdServer
) -> None:
    secret = manager.create_token(Scope.OPERATE, name="nightly", days=HOUR_DAYS / 2)
    shown = {"authorization": f"Bearer {secret}"}
    url = f"{behind.origin}{PREFIX}/jobs"
    assert httpx.get(url, headers=shown, timeout=HANGS_S).status_code == 200
    (made,) = [one for one in manager.tokens() if one.name == "nightly"]
    assert (made.scope, made.kind) == (Scope.OPERATE, GrantKind.TOKEN)
    assert manager.revoke_token(made.grant_id) == made
    assert httpx.post(url, headers=shown, timeout=HANGS_S).status_code == 401
    assert made not in manager.tokens()
    manager.create_token(Scope.READ, name="every night", days=HOUR_DAYS / 2)
    assert manager.revoke_token("every night").name == "every night"
    with pytest.raises(InvalidTask, match="no path of a URL"):
        manager.revoke_token("../jobs")


@pytest.mark.parametrize(
    ("scope", "days", "said"),
    [(Scope.TOKENS, HOUR_DAYS / 2, "scope"), (Scope.READ, 2 * HOUR_DAYS, "days"), (Scope.READ, 0.0, "days")],
    ids=["its like", "one that outlives it", "one of no time"],
)
def test_a_grant_makes_neither_its_like_nor_one_that_outlives_it(
    manager: RemoteAdServer, scope: Scope, days: float, said: str
) -> None:
    before = manager.tokens()
    with pytest.raises(InvalidTask, match=said):
        manager.create_token(scope, name="more", days=days)
    assert manager.tokens() == before


@pytest.mark.parametrize("scope", [Scope.READ, Scope.OPERATE, Scope.TASKS])
def test_no_other_scope_manages_tokens(behind: Any, scope: Scope) -> None:
    server = RemoteAdServer(url=behind.origin, token=behind.of.grant(GrantKind.TOKEN, scope))
    for act in (
        server.tokens,
        lambda: server.create_token(Scope.READ, name="a", days=0.001),
        lambda: server.revoke_token("0"),
    ):
        with pytest.raises(
            JobRefused, match=rf"of scope .* this one has {scope} \((wrong_scope|read_only)\)"
        ):
            act()


def test_the_state_of_a_server_is_read_from_afar(behind: Any, manager: RemoteAdServer) -> None:
    assert manager.intake().accepted == behind.of.counts.accepted
    assert [(one.name, one.software_digest) for one in manager.helpers()] == [
        ("north", bytes(32).hex()),
        ("south", bytes(32).hex()),
    ]
    assert manager.queries() == behind.of.client.server.queries()


def test_keys_are_refreshed_and_datasets_abandoned_from_afar(
    behind: Any, manager: RemoteAdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = behind.of.client.server
    monkeypatch.setattr(here, "refresh_keys", lambda: 3)
    assert manager.refresh_keys() == 3
    committed = here.datasets()[0]
    with pytest.raises(JobRefused) as refusal:
        manager.abandon(committed.dataset_id.hex())
    assert refusal.value.reason is JobReason.WRONG_STATE
    monkeypatch.setattr(here, "abandon", lambda _dataset: committed)
    assert manager.abandon("ab") == committed


def test_the_audit_log_names_the_token_that_acted_and_what_was_refused_to_it(
    behind: Any, manager: RemoteAdServer
) -> None:
    behind.of.refused.flush(is_over=True)  # which begins a new hour: other tests were refused too
    before = manager.audit_log()[-1].sequence
    manager.create_token(Scope.READ, name="nightly", days=HOUR_DAYS / 2)
    with pytest.raises(InvalidTask):
        manager.create_token(Scope.TOKENS, name="more", days=HOUR_DAYS / 2)
    reader = RemoteAdServer(url=behind.origin, token=behind.of.grant(GrantKind.TOKEN, Scope.READ))
    with pytest.raises(MaskedLarkError):
        reader.create_token(Scope.READ, name="mine", days=HOUR_DAYS / 2)
    stranger = RemoteAdServer(url=behind.origin, token="mlt_none")  # noqa: S106 - nobody's
    with pytest.raises(MaskedLarkError):
        stranger.jobs()
    found = manager.audit_log(after=before)
    assert verify_lines([one.encode() for one in manager.audit_log()]).head == found[-1].digest
    told = [(one.act.value, one.actor.kind.value, one.outcome) for one in found if one.actor.address]
    assert told == [
        ("create_token", "token", "done"),
        ("create_token", "token", "invalid_task"),
        ("request_change", "token", "read_only"),
        ("log_in", "session", "no_grant"),
    ]
    page = manager.audit_log(after=found[0].sequence, limit=2)
    assert page == found[1:3]
    assert manager.audit_log(after=before, limit=2, is_newest=True) == found[-2:]
    assert manager.audit_log(after=before, is_newest=True) == found

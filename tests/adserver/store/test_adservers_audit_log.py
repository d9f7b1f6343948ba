"""The ad server's audit log: each act in its own transaction, and by whom."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from adserver.records.access import GrantKind, Scope
from adserver.records.training_plan import TrainingPlan
from adserver.store import audit_log
from adserver.store.access import AccessStore
from adserver.store.audit_log import LOG, acting_as
from adserver.store.database import create_tables, default_url
from adserver.store.jobs import JobStore
from maskedlark.audit_log import Actor, ActorKind, AuditAct, verify_lines
from maskedlark.errors import JobRefused
from maskedlark.runtime.database import open_database
from tests.builders import job_spec, world
from tests.training_plans import training_plan

ALICE = Actor(kind=ActorKind.TOKEN, name="alice", identity="ab12", address="10.0.0.1")
NOW = 1_000.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_database(default_url(tmp_path))
    create_tables(made)
    yield made
    made.dispose()


def a_plan() -> TrainingPlan:
    task = world().task
    job = job_spec(task_id=task.task_id, dataset_id=b"d" * 32, rounds=10)
    return training_plan(task, job, records=20)


def acts(engine: Engine) -> list[AuditAct]:
    return [one.act for one in LOG.page(engine, after=0, most=100)]


def test_grants_are_logged_without_their_secrets(engine: Engine) -> None:
    store = AccessStore(engine, lambda: NOW)
    with acting_as(ALICE):
        secret = store.make(GrantKind.TOKEN, Scope.READ, name="nightly\n", lasts_s=60.0)
        link = store.make(GrantKind.LOGIN, Scope.OPERATE, name="dashboard", lasts_s=60.0)
    session = store.log_in(link)
    assert session is not None
    assert store.log_in(link) is None
    (token,) = store.all([GrantKind.TOKEN])
    store.revoke(token.grant_id, [GrantKind.TOKEN])
    found = store.find(session, [GrantKind.SESSION])
    assert found is not None
    store.end(found)
    store.end(found)  # which ends nothing
    assert acts(engine) == [
        AuditAct.CREATE_TOKEN, AuditAct.CREATE_TOKEN, AuditAct.LOG_IN, AuditAct.REVOKE_TOKEN, AuditAct.LOG_OUT
    ]  # fmt: skip
    entries = LOG.page(engine, after=0, most=100)
    assert [one.actor for one in entries[:2]] == [ALICE, ALICE]
    assert entries[2].actor.kind is ActorKind.USER  # of this process, for nobody is named
    assert entries[0].subject == {
        "token": token.grant_id, "kind": "token", "scope": "read", "name": "nightly\\n"
    }  # fmt: skip
    log = b"".join(one.encode() for one in entries)
    for one in (secret, link, session):
        assert one.encode() not in log
        assert one[4:].encode() not in log


def test_jobs_are_logged_when_their_state_changes_and_not_when_it_does_not(engine: Engine) -> None:
    store, plan = JobStore(engine, lambda: NOW), a_plan()
    with acting_as(ALICE):
        store.submit(plan)
        store.cancel(plan.job.job_id)
        with pytest.raises(JobRefused):
            store.cancel(plan.job.job_id)
        with pytest.raises(JobRefused):
            store.resume(b"?" * 16)
    assert acts(engine) == [AuditAct.SUBMIT_JOB, AuditAct.CANCEL_JOB]
    assert LOG.page(engine, after=0, most=1)[0].subject["job"] == plan.job.job_id.hex()
    verify_lines(LOG.lines(engine))


class PowerCut(Exception):
    """The process is gone."""


def test_a_process_that_dies_leaves_act_and_entry_or_neither(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, access, plan = JobStore(engine, lambda: NOW), AccessStore(engine, lambda: NOW), a_plan()
    tried: list[Callable[[], Any]] = [
        lambda: store.submit(plan),
        lambda: access.make(GrantKind.TOKEN, Scope.READ, name="", lasts_s=60.0),
    ]
    append = LOG.append

    def cut(*given: Any, **how: Any) -> None:
        append(*given, **how)
        raise PowerCut

    with monkeypatch.context() as dying:
        dying.setattr(audit_log.LOG, "append", cut)
        for act in tried:
            with suppress(PowerCut):
                act()
    assert acts(engine) == []
    assert store.all() == ()
    assert access.all([GrantKind.TOKEN]) == []

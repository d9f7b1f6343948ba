"""A helper's audit log has an entry for each act that its ledger holds, and for none that it does not."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner

from helper.cli.main import app
from helper.ledger.audit_report import AuditReport
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import ReleaseKey, StoredRound
from helper.ledger.statements import LOG
from helper.releases.answering import Call
from helper.serving.own_acts import OwnActs
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.audit_log import Actor, ActorKind, AuditAct, AuditEntry, Deed, verify_lines
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.runtime.audit_table import AuditTable, Link
from maskedlark.runtime.database import open_database
from tests.helper.parties import FLOORS, MODEL, WEIGHTS, Scene

ALICE = Actor(kind=ActorKind.CERTIFICATE, name="ads.example", identity="ab" * 32, address="10.0.0.1")
AS_ALICE = Call(caller=None, actor=ALICE)


def entries(scene: Scene, role: int = 0) -> list[AuditEntry]:
    return AuditReport(scene.cores[role].ledger.engine).newest(1_000)


def run_a_job(scene: Scene, rounds: int = 3) -> None:
    prepared = scene.prepare(scene.reports(20))
    for core in scene.cores:
        core.datasets.commit(
            scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None, actor=ALICE
        )
    spec = scene.job(prepared.dataset_id)
    for core in scene.cores:
        core.jobs.start(canonical.encode(spec), MODEL, AS_ALICE)
        for index in range(rounds):
            job = core.jobs.at_work(spec_key(scene, spec.job_id), None)
            answer = job.answer(index, WEIGHTS, AS_ALICE)
            assert job.answer(index, WEIGHTS, AS_ALICE) == answer  # which is no further act
        core.jobs.close(canonical.encode(spec), None, actor=ALICE)


def spec_key(scene: Scene, job_id: bytes) -> ReleaseKey:
    return ReleaseKey(scene.task_id, job_id)


def test_each_act_is_one_entry_that_says_who_and_what(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    run_a_job(scene)
    found = entries(scene)
    assert [one.act for one in found] == [
        AuditAct.BEGIN_LOG,
        AuditAct.SIGN_TASK,
        AuditAct.COMMIT_DATASET,
        AuditAct.OPEN_JOB,
        *[AuditAct.ANSWER_ROUND] * 3,
        AuditAct.CLOSE_JOB,
    ]
    assert {one.actor for one in found[2:]} == {ALICE}
    assert found[2].subject["reports"] == "20"
    answer = scene.cores[0].ledger.round(spec_key(scene, bytes.fromhex(found[4].subject["job"])), 2)
    assert answer is not None
    assert [one.subject.get("round") for one in found[4:7]] == ["0", "1", "2"]
    job = found[3].subject["job"]
    assert {one.subject.get("task") for one in found[1:]} == {scene.task_id.hex()}
    assert {one.subject.get("job") for one in found[3:]} == {job} != {scene.task_id.hex()}
    verify_lines(one.encode() for one in found)


def test_the_newest_entries_are_read_and_lines_from_a_number_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    run_a_job(scene, rounds=2)
    report, found = AuditReport(scene.cores[0].ledger.engine), entries(scene)
    assert [one.sequence for one in found] == list(range(7))
    for most in (1, 3, 7, 8):
        assert report.newest(most) == found[-most:]
    for first in (0, 1, 6):
        assert [*report.lines(first)] == [one.encode() for one in found[first:]]


def test_no_entry_holds_a_secret(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    run_a_job(scene)
    OwnActs(scene.cores[0], FLOORS).log_start()
    log = b"\n".join(one.encode() for one in entries(scene))
    keys = (scene.parties[0].data / "keys.json").read_text()
    secrets = [value for value in _strings(json.loads(keys)) if len(value) >= 64]
    assert len(secrets) >= 4
    assert not [one for one in secrets if one.encode() in log]
    for report in scene.reports(20):
        assert report.report_id.hex().encode() not in log


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in _strings(each)]
    if isinstance(value, list):
        return [one for each in value for one in _strings(each)]
    return [value] if isinstance(value, str) else []


class PowerCut(Exception):
    """The process is gone."""


@frozen
class CutTable:
    """The audit log of a process that dies as it appends, just before or just after."""

    real: AuditTable
    is_after: bool

    def append(self, connection: Connection, deed: Deed, *, at: float) -> Link:
        if self.is_after:
            self.real.append(connection, deed, at=at)
        raise PowerCut


ACTS: dict[str, Callable[[Ledger, Scene], object]] = {
    "dataset": lambda ledger, scene: ledger.add_dataset(b"e" * 32, scene.task_id, [b"r" * 16]),
    "job": lambda ledger, scene: ledger.open_job(
        scene.job(b"d" * 32, job_id=b"k" * 16), MODEL, lambda _: None
    ),
    "round": lambda ledger, scene: ledger.add_round(
        spec_key(scene, b"j" * 16), 0, StoredRound(weights_digest=b"w" * 32, answer=b"a")
    ),
    "close": lambda ledger, scene: ledger.close_job(scene.job(b"d" * 32, job_id=b"j" * 16)),
    "tombstone": lambda ledger, scene: ledger.close_job(scene.job(b"d" * 32, job_id=b"l" * 16)),
}


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_process_that_dies_leaves_act_and_entry_or_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, *, is_after: bool
) -> None:
    scene = Scene(tmp_path)
    ledger = scene.cores[0].ledger
    ledger.add_dataset(b"d" * 32, scene.task_id, [b"s" * 16])
    assert ledger.open_job(scene.job(b"d" * 32, job_id=b"j" * 16), MODEL, lambda _: None)
    before = ledger.position()
    with monkeypatch.context() as cut:
        cut.setattr("helper.ledger.ledger.LOG", CutTable(real=LOG, is_after=is_after))
        with pytest.raises(PowerCut):
            ACTS[act](ledger, scene)
    assert ledger.position() == before
    again = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))  # and it is whole
    ACTS[act](again, scene)
    assert again.position().sequence > before.sequence


@pytest.mark.parametrize("act", ["sign_task", "commit_dataset", "open_job", "answer_round", "close_job"])
def test_a_helper_whose_log_lost_an_act_or_has_one_too_many_does_not_serve(tmp_path: Path, act: str) -> None:
    scene = Scene(tmp_path)
    run_a_job(scene)
    engine = scene.cores[0].ledger.engine
    with engine.begin() as connection:
        changed = text("UPDATE audit_log SET is_done = 0 WHERE act = :act")
        assert connection.execute(changed, {"act": act}).rowcount
    with pytest.raises(InvalidTask, match="has lost rows"):
        Ledger(engine)


def test_floors_and_keys_are_logged_when_they_change(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    core = scene.cores[0]
    for floors in (FLOORS, FLOORS, replace(FLOORS, min_batch_size=7)):
        OwnActs(core, floors).log_start()
    counts = Counter(one.act for one in entries(scene))
    assert counts[AuditAct.START_SERVICE] == 3
    assert counts[AuditAct.SET_FLOORS] == 2
    assert counts[AuditAct.SET_KEYS] == 1
    newest = [one for one in entries(scene) if one.act is AuditAct.SET_FLOORS][-1]
    assert newest.subject["min_batch_size"] == "7"


def run_cli(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_export_and_verify_what_the_ledger_holds(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    run_a_job(scene)
    data, export = scene.parties[0].data, tmp_path / "log.jsonl"
    run_cli("keys", "rotate", "--data", data)
    newest = json.loads(run_cli("audit", "list", "--data", data, "--limit", "1", "--json"))[0]
    assert (newest["act"], newest["actor"]["kind"], newest["subject"]["newest_key"]) == (
        "set_keys",
        "user",
        "2",
    )
    run_cli("keys", "wrap", "--data", data, "--with", "file")
    wrapped = json.loads(run_cli("audit", "list", "--data", data, "--limit", "1", "--json"))[0]
    assert (wrapped["act"], wrapped["actor"]["kind"], wrapped["subject"]) == (
        "wrap_keys",
        "user",
        {"keeper": "file"},
    )
    before = (data / "keys.json").stat().st_ino
    unlogged = [
        "keys",
        "wrap",
        "--data",
        str(data),
        "--with",
        "file",
        "--database",
        "sqlite:////absent/ledger",
    ]
    assert CliRunner().invoke(app, unlogged).exception is not None  # what cannot be logged is not done
    assert (data / "keys.json").stat().st_ino == before
    OwnActs(scene.cores[0], FLOORS).log_start()  # and the process that serves does not log them again
    assert Counter(one.act for one in entries(scene))[AuditAct.SET_KEYS] == 1
    assert len(HelperKeys.read(data).ring()) == 2
    noted = json.loads(run_cli("audit", "verify", "--data", data, "--json"))
    run_cli("audit", "export", "--data", data, "--out", export)
    assert json.loads(run_cli("audit", "verify", export, "--json", "--after", noted["head"])) == noted
    assert noted["entries"] == len(export.read_bytes().splitlines())
    export.write_bytes(export.read_bytes().replace(b'"round":"1"', b'"round":"2"'))
    assert isinstance(CliRunner().invoke(app, ["audit", "verify", str(export)]).exception, InvalidTask)
    assert "answer_round" in run_cli("audit", "list", "--data", data)


def test_the_list_shows_the_acts_that_are_asked_for_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    run_a_job(scene)
    listed = ["audit", "list", "--data", str(scene.parties[0].data), "--json"]
    signed_or_closed = json.loads(run_cli(*listed, "--act", "sign_task", "--act", "close_job"))
    assert [one["act"] for one in signed_or_closed] == ["sign_task", "close_job"]
    newest = json.loads(run_cli(*listed, "--act", "answer_round", "--limit", "2"))
    assert [one["subject"]["round"] for one in newest] == ["1", "2"]
    assert json.loads(run_cli(*listed, "--act", "answer_query")) == []
    refused = CliRunner().invoke(app, [*listed, "--act", "sign"]).exception
    assert isinstance(refused, InvalidTask)
    assert "--act sign: no such act; expected one of abandon_dataset, answer_query" in str(refused)


def test_a_restored_ledger_that_went_on_does_not_hold_what_was_noted(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    file = scene.parties[0].data / "ledger.sqlite3"
    scene.cores[0].ledger.close()
    backup = file.read_bytes()
    ledger = Ledger(open_database(sqlite_url(file)))
    ledger.add_dataset(b"d" * 32, scene.task_id, [b"s" * 16])
    noted = verify_lines(LOG.lines(ledger.engine)).head
    ledger.close()
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink(missing_ok=True)
    file.write_bytes(backup)
    restored = Ledger(open_database(sqlite_url(file)))
    restored.add_dataset(b"e" * 32, scene.task_id, [b"s" * 16])
    verify_lines(LOG.lines(restored.engine))
    with pytest.raises(InvalidTask, match="restored from a backup"):
        verify_lines(LOG.lines(restored.engine), after=noted)

"""An audit log that somebody changed is noticed, and nobody fills the disk with refusals."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, text
from sqlalchemy.exc import OperationalError

from maskedlark.audit_log import (
    THIS_SERVICE,
    Actor,
    ActorKind,
    AuditAct,
    AuditEntry,
    Deed,
    clean_name,
    parse_digest,
    verify_lines,
)
from maskedlark.canonical import decode, encode
from maskedlark.errors import (
    HelperUnavailable,
    InvalidSetting,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
)
from maskedlark.runtime.audit_table import AuditTable, audit_table_of
from maskedlark.runtime.database import open_database
from maskedlark.runtime.refused_acts import MOST_ALIKE, MOST_AN_HOUR, MOST_OF_ONE, RefusedActs

METADATA = MetaData()
LOG = AuditTable(audit_table_of(METADATA))
ALICE = Actor(kind=ActorKind.TOKEN, name="alice", identity="ab12", address="10.0.0.1")
DEED = Deed(act=AuditAct.SUBMIT_JOB, actor=ALICE, subject=(("job", "00ff"),))


def lines(count: int = 5, nonce: bytes = bytes(32)) -> list[bytes]:
    entries = [AuditEntry.begin(at=100, nonce=nonce)]
    while len(entries) < count:
        entries.append(entries[-1].next_entry(at=100.9 + len(entries), deed=DEED))
    return [one.encode() for one in entries]


def changed(line: bytes, **fields: Any) -> bytes:
    return encode(replace(decode(AuditEntry, line), **fields))


def test_a_whole_log_holds_and_says_what_to_note() -> None:
    whole = lines()
    found = verify_lines(whole)
    assert (found.num_entries, found.first) == (5, 0)
    assert found.head == decode(AuditEntry, whole[-1]).digest
    assert verify_lines([one + b"\r\n" for one in whole]) == found


TAMPERED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "removed": lambda all_: all_[:2] + all_[3:],
    "removed and the rest renumbered": lambda all_: [*all_[:2], changed(all_[3], sequence=2)],
    "changed": lambda all_: [*all_[:2], changed(all_[2], outcome="refused"), *all_[3:]],
    "another actor": lambda all_: [*all_[:2], changed(all_[2], actor=THIS_SERVICE), *all_[3:]],
    "reordered": lambda all_: [all_[0], all_[2], all_[1], *all_[3:]],
    "reordered and renumbered": lambda all_: [
        all_[0], changed(all_[2], sequence=1), changed(all_[1], sequence=2), *all_[3:]
    ],
    "twice": lambda all_: [*all_[:3], all_[2], *all_[3:]],
    "added": lambda all_: [*all_[:2], changed(all_[2], at=1), *all_[2:]],
    "without its beginning": lambda all_: all_[1:],
    "not canonical": lambda all_: [all_[0].replace(b":", b": ", 1), *all_[1:]],
    "an unknown act": lambda all_: [all_[0], all_[1].replace(b"submit_job", b"submit_all"), *all_[2:]],
    "empty": lambda _: [],
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERED)
def test_a_log_that_was_changed_is_refused(how: str) -> None:
    with pytest.raises(InvalidSetting):
        verify_lines(TAMPERED[how](lines()))


def test_a_log_that_lost_its_newest_entries_or_forked_does_not_hold_a_noted_entry() -> None:
    whole = lines()
    noted = verify_lines(whole).head
    went_on = decode(AuditEntry, whole[3]).next_entry(at=900, deed=replace(DEED, outcome="refused"))
    assert verify_lines(lines(7), after=noted).num_entries == 7
    for other in (whole[:4], [*whole[:4], went_on.encode()], lines(nonce=b"n" * 32)):
        verify_lines(other)  # by itself it looks whole
        with pytest.raises(InvalidSetting, match="restored from a backup"):
            verify_lines(other, after=noted)


def test_the_end_of_a_log_is_verified_from_the_entry_before_it() -> None:
    whole = lines(7)
    noted = verify_lines(whole[:4]).head
    assert verify_lines(whole[4:], after=noted).first == 4
    for end in (whole[5:], whole[4:5] + whole[6:]):
        with pytest.raises(InvalidSetting):
            verify_lines(end, after=noted)


def test_names_that_others_chose_are_stored_as_text_that_a_terminal_does_not_obey() -> None:
    hostile = "\x1b[2Jroot\n\u202e\x7f" + "x" * 1_000
    entry = AuditEntry.begin(at=1, nonce=bytes(32)).next_entry(
        at=2, deed=replace(DEED, subject=(("name", hostile),))
    )
    assert entry.subject["name"].isprintable()
    assert clean_name(hostile).startswith("\\x1b[2Jroot\\n\\u202e\\x7fxxx")
    assert entry.encode().isascii()
    assert len(entry.encode()) < 1_000


@pytest.mark.parametrize("typed", ["", "ab", "g" * 64, "a" * 63, "a" * 66])
def test_what_is_no_digest_is_refused(typed: str) -> None:
    with pytest.raises(InvalidSetting, match="64 hexadecimal digits"):
        parse_digest(typed)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = open_database(f"sqlite:///{tmp_path / 'log.sqlite3'}")
    METADATA.create_all(made)
    LOG.begin(made, at=1)
    LOG.begin(made, at=2)  # changes nothing
    with made.begin() as connection:
        for number in range(4):
            LOG.append(connection, DEED, at=number)
    return made


def test_a_table_holds_what_was_appended(engine: Engine) -> None:
    assert verify_lines(LOG.lines(engine)).num_entries == 5
    assert [one.sequence for one in LOG.page(engine, after=1, most=2)] == [2, 3]
    assert [one.sequence for one in LOG.page(engine, most=2, is_newest=True)] == [3, 4]
    assert [one.sequence for one in LOG.page(engine, after=3, most=2, is_newest=True)] == [4]
    with engine.begin() as connection:
        assert LOG.append_change(connection, AuditAct.SET_FLOORS, {"k": "20"}, ALICE, at=9)
        assert not LOG.append_change(connection, AuditAct.SET_FLOORS, {"k": "20"}, ALICE, at=9)
        assert LOG.append_change(connection, AuditAct.SET_FLOORS, {"k": "2"}, ALICE, at=9)
    assert verify_lines(LOG.lines(engine)).num_entries == 7


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit_log WHERE sequence = 2",
        "UPDATE audit_log SET act = 'cancel_job' WHERE sequence = 2",
        "UPDATE audit_log SET is_done = 0 WHERE sequence = 2",
        "UPDATE audit_log SET head = zeroblob(32) WHERE sequence = 2",
        "UPDATE audit_log SET entry = (SELECT entry FROM audit_log WHERE sequence = 1) WHERE sequence = 2",
        "UPDATE audit_log SET sequence = 20 WHERE sequence = 2",
    ],
)
def test_a_row_that_was_changed_is_noticed(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))
    with pytest.raises(InvalidSetting):
        verify_lines(LOG.lines(engine))


class Hours:
    """Refusals, written to a list, and a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.written: list[Deed] = []
        self.acts = RefusedActs(self.written.append, lambda: self.now_s)

    def refuse(
        self,
        actor: Actor = ALICE,
        reason: JobReason = JobReason.UNKNOWN_TASK,
        why: str = "",
        **subject: str,
    ) -> None:
        self.acts.add(AuditAct.OPEN_JOB, actor, JobRefused(reason, why), subject)


def test_the_first_refusal_is_an_entry_and_those_like_it_are_one_entry_an_hour() -> None:
    hours = Hours()
    for _ in range(1_000):
        hours.refuse()
    assert [(one.outcome, one.count) for one in hours.written] == [("unknown_task", 1)]
    hours.acts.flush()
    assert len(hours.written) == 1
    hours.now_s = 3_601.0
    hours.acts.flush()
    assert [(one.outcome, one.count) for one in hours.written] == [("unknown_task", 1), ("unknown_task", 999)]
    hours.refuse()
    hours.acts.flush(is_over=True)
    assert [one.count for one in hours.written] == [1, 999, 1]


def test_a_refusals_entry_and_line_say_which_task_and_why(caplog: pytest.LogCaptureFixture) -> None:
    hours = Hours()
    for _ in range(3):
        hours.refuse(reason=JobReason.TASK_REFUSED, why="epsilon is 6", task="ab12")
    hours.acts.flush(is_over=True)
    assert [(one.subject, one.count) for one in hours.written] == [
        ((("task", "ab12"), ("why", "epsilon is 6")), 1),
        ((("task", "ab12"), ("why", "epsilon is 6")), 2),
    ]
    assert caplog.messages == ["refused open_job of alice, task ab12: task_refused: epsilon is 6"]
    assert caplog.records[0].levelno == logging.WARNING


def test_texts_that_a_caller_chooses_fill_neither_the_disk_nor_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hours = Hours()
    for number in range(1_000):
        hours.refuse(why=f"\x1b[2J{number}\nforged: line" + "x" * 1_000, job=f"{number:x}")
    hours.refuse(reason=JobReason.UNDECLARED, why="of another reason")
    assert [dict(one.subject).get("job") for one in hours.written] == [
        *map(str, range(MOST_ALIKE)),
        None,
        None,
    ]
    assert len(caplog.messages) == MOST_ALIKE + 2
    assert all(one.isprintable() and len(one) < 400 for one in caplog.messages)
    hours.acts.flush(is_over=True)
    assert hours.written[-1].count == 1_000 - MOST_ALIKE - 1
    assert "further refusals of this hour" in dict(hours.written[-1].subject)["why"]


def test_refusals_fill_no_disk_and_one_caller_leaves_room_for_others() -> None:
    hours = Hours()
    for name in range(40):  # the certificates, addresses and reasons that one host comes up with
        for reason in JobReason:
            hours.refuse(replace(ALICE, identity=f"{name:x}", address=f"10.0.0.{name}"), reason)
    assert len(hours.written) == MOST_OF_ONE
    hours.refuse(replace(ALICE, name="bob"))
    assert hours.written[-1].actor.name == "bob"
    for name in range(1_000):
        hours.refuse(replace(ALICE, name=str(name)))
    assert len(hours.written) == MOST_AN_HOUR
    hours.acts.flush(is_over=True)
    assert hours.written[-1].act is AuditAct.OTHER_REFUSALS
    assert len(hours.written) <= 2 * MOST_AN_HOUR + 1
    no_refusals = {JobReason.CANCELLED, JobReason.PEER_FAILED, JobReason.LEDGER_ROLLED_BACK}
    asked = 40 * (len(JobReason) - len(no_refusals)) + 1 + 1_000
    assert sum(one.count for one in hours.written) == asked


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidTask("x"), "invalid_task"),
        (JobRefused(JobReason.BUDGET_EXHAUSTED, "x"), "budget_exhausted"),
        (JobRefused(JobReason.CANCELLED, "x"), None),
        (JobRefused(JobReason.LEDGER_ROLLED_BACK, "x"), None),
        (HelperUnavailable("x"), None),
    ],
)
def test_only_decisions_about_the_caller_are_refusals(error: MaskedLarkError, outcome: str | None) -> None:
    hours = Hours()
    hours.acts.add(AuditAct.OPEN_JOB, ALICE, error)
    assert [one.outcome for one in hours.written] == ([] if outcome is None else [outcome])


def test_a_refusal_is_told_also_where_the_database_does_not_take_it() -> None:
    def fail(_: Deed) -> None:
        raise OperationalError("", {}, Exception())

    RefusedActs(fail).add(AuditAct.OPEN_JOB, ALICE, InvalidTask("x"))

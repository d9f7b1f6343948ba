"""The audit log of a service: each act with its actor, time, origin and outcome, as a chain of entries.

Each entry has the digest of the entry before it, so that one that is removed, changed or moved shows. What
a chain cannot show by itself is that its newest entries are missing: for that an operator notes the digest of
the newest entry now and then, and verifies later that the log still holds it (`--after`). A database that was
restored from a backup and went on shows in the same way: its chain forks before the noted entry.

An export is one line an entry, each the canonical JSON of `AuditEntry`; its digest is what the next line
names as `previous`. The entry of number 0 begins the log, with random bytes for `previous`, so no two logs
are ever alike. No entry holds a secret, or anything of a report.

>>> begun = AuditEntry.begin(at=1, nonce=bytes(32))
>>> signed = begun.next_entry(at=2, deed=Deed(act=AuditAct.SIGN_TASK, actor=THIS_SERVICE))
>>> verify_lines([begun.encode(), signed.encode()]).num_entries
2
"""

from collections.abc import Iterable
from enum import StrEnum, unique
from typing import Annotated, Final

from pydantic import Field

from maskedlark.canonical import Bytes32, canonical, decode, digest, encode
from maskedlark.errors import InvalidSetting, InvalidTask
from maskedlark.escape import escape
from maskedlark.frozen import frozen

MOST_NAME: Final = 300
"""Characters of a name in an entry; the rest is cut."""
DONE: Final = "done"
"""The outcome of an act that was done; any other is the code of a refusal (docs/reference/errors.md)."""
_MAX_SEQUENCE: Final = (1 << 63) - 1  # of a signed integer in a database
_MOST_SUBJECTS: Final = 40


@unique
class AuditAct(StrEnum):
    """An act that was done or tried."""

    BEGIN_LOG = "begin_log"
    """The service created its database."""
    START_SERVICE = "start_service"
    SET_FLOORS = "set_floors"
    """A helper's operator started it with other floors than before."""
    SET_KEYS = "set_keys"
    """The HPKE keys of a helper changed: by `lark-helper keys rotate`, or the file was replaced."""
    WRAP_KEYS = "wrap_keys"
    """By `lark-helper keys wrap`: what keeps a helper's secrets from now on, or `file` for nothing."""
    SIGN_TASK = "sign_task"
    PREPARE_DATASET = "prepare_dataset"
    """Only where it is refused: what is prepared counts once it is committed."""
    COMMIT_DATASET = "commit_dataset"
    OPEN_JOB = "open_job"
    ANSWER_ROUND = "answer_round"
    CLOSE_JOB = "close_job"
    ANSWER_QUERY = "answer_query"
    READ_STATEMENTS = "read_statements"
    """Only where it is refused."""
    CREATE_TASK = "create_task"
    SEAL_DATASET = "seal_dataset"
    ABANDON_DATASET = "abandon_dataset"
    SUBMIT_JOB = "submit_job"
    CANCEL_JOB = "cancel_job"
    RESUME_JOB = "resume_job"
    ASK_QUERY = "ask_query"
    """A query or an evaluation was sent to the helpers, which charge it."""
    CREATE_TOKEN = "create_token"  # noqa: S105 - the name of an act
    REVOKE_TOKEN = "revoke_token"  # noqa: S105 - the name of an act
    LOG_IN = "log_in"
    LOG_OUT = "log_out"
    REQUEST_CHANGE = "request_change"
    """Only where it is refused: a change over the admin API, to a grant that may only look."""
    OTHER_REFUSALS = "other_refusals"
    """So many refusals that no entry of their own was made: see `maskedlark.runtime.refused_acts`."""


@unique
class ActorKind(StrEnum):
    """How an actor was identified."""

    CERTIFICATE = "certificate"
    """A peer whose certificate TLS checked: its names, and its SHA-256."""
    LOOPBACK = "loopback"
    """A process on this machine that connected without TLS."""
    TOKEN = "token"  # noqa: S105 - the name of a kind
    """A token of the admin API: its name, and the start of its id."""
    SESSION = "session"
    """A browser that is logged in to the dashboard, likewise."""
    USER = "user"
    """A user of the operating system, at a command line."""
    SERVICE = "service"
    """The service itself."""


@canonical
class Actor:
    """The actor of an act, and where it came from.

    Attributes:
        kind: By what the actor is known.
        name: The names in its certificate, or of its token, or of the user.
        identity: The SHA-256 of its certificate in hexadecimal, or the start of its token's id.
        address: The address that it called from; empty at a command line.
    """

    kind: ActorKind
    name: Annotated[str, Field(max_length=MOST_NAME)] = ""
    identity: Annotated[str, Field(max_length=64)] = ""
    address: Annotated[str, Field(max_length=MOST_NAME)] = ""


THIS_SERVICE: Final = Actor(kind=ActorKind.SERVICE)


@frozen
class Deed:
    """An act before it is in a log.

    Attributes:
        act: What was done, or tried.
        actor: The actor, and where it came from.
        subject: What it was done to: public ids and settings, by name.
        outcome: `DONE`, or the code of a refusal.
        count: How many acts the entry stands for: more than one only of refusals.
    """

    act: AuditAct
    actor: Actor
    subject: tuple[tuple[str, str], ...] = ()
    outcome: str = DONE
    count: int = 1

    def entry(self, *, sequence: int, previous: bytes, at: float) -> "AuditEntry":
        """Return the entry of this deed at its place in a chain."""
        return AuditEntry(
            sequence=sequence,
            previous=previous,
            at=int(at),
            act=self.act,
            actor=self.actor,
            # Here, where every entry is made: what a peer called itself is later read on terminals.
            subject={name: clean_name(value) for name, value in self.subject},
            outcome=self.outcome,
            count=self.count,
        )


@canonical
class AuditEntry:
    """One entry of a log.

    Attributes:
        sequence: Its number, from 0.
        previous: The digest of the entry before it.
        at: Unix seconds, by the service's clock.
        act: What was done, or tried.
        actor: The actor, and where it came from.
        subject: What it was done to: public ids and settings, by name.
        outcome: `DONE`, or the code of a refusal.
        count: How many acts it stands for: more than one only of refusals.
    """

    sequence: Annotated[int, Field(ge=0, le=_MAX_SEQUENCE)]
    previous: Bytes32
    at: Annotated[int, Field(ge=0)]
    act: AuditAct
    actor: Actor
    subject: Annotated[dict[str, str], Field(max_length=_MOST_SUBJECTS)]
    outcome: Annotated[str, Field(min_length=1, max_length=40)]
    count: Annotated[int, Field(ge=1)] = 1

    @classmethod
    def begin(cls, *, at: float, nonce: bytes) -> "AuditEntry":
        """Return the entry of number 0, which begins a log; `nonce` is 32 random bytes."""
        deed = Deed(act=AuditAct.BEGIN_LOG, actor=THIS_SERVICE)
        return deed.entry(sequence=0, previous=nonce, at=at)

    def encode(self) -> bytes:
        """Return the entry as a line of an export, without the line's end."""
        return encode(self)

    @property
    def digest(self) -> bytes:
        """32 bytes that name the entry and all entries before it."""
        return digest_of_line(self.encode())

    def next_entry(self, *, at: float, deed: Deed) -> "AuditEntry":
        """Return the entry after this one."""
        return deed.entry(sequence=self.sequence + 1, previous=self.digest, at=at)


@frozen
class _VerifiedLog:
    """What is known of a log whose chain holds.

    Attributes:
        num_entries: How many entries were read.
        first: The number of the first one.
        head: The digest of the newest one: what an operator notes.
    """

    num_entries: int
    first: int
    head: bytes


def clean_name(name: str) -> str:
    """Return a name that another party chose as an entry holds it: visible characters alone, and cut."""
    return escape(name)[:MOST_NAME]


def digest_of_line(line: bytes) -> bytes:
    """Return the digest of an encoded entry."""
    return digest("audit entry", line)


def verify_lines(lines: Iterable[bytes], *, after: bytes | None = None) -> _VerifiedLog:
    """Verify an export: each line is an entry, and names the one before it.

    Args:
        lines: The lines, in order, with or without their ends.
        after: The digest of an entry that was noted earlier: the log must hold it, or begin right after it.

    Raises:
        InvalidSetting: an entry was removed, changed, added or moved; or the log does not hold the noted
            entry.
    """
    first: AuditEntry | None = None
    previous, count, is_noted = b"", 0, after is None
    for line in lines:
        entry = _read(line.rstrip(b"\r\n"), count)
        if first is None:
            first = entry
            is_noted = is_noted or entry.previous == after
        elif entry.sequence != first.sequence + count or entry.previous != previous:
            raise InvalidSetting(
                f"line {count + 1} of the log does not follow the one before it: expected entry "
                f"{first.sequence + count}, whose `previous` is {previous.hex()}; an entry was removed, "
                "changed or moved"
            )
        # Of the line as it came: `decode` has refused any other spelling of the entry.
        previous, count = digest_of_line(line.rstrip(b"\r\n")), count + 1
        is_noted = is_noted or previous == after
    if first is None:
        raise InvalidSetting("the log is empty: expected at least the entry that begins it")
    if not is_noted:
        raise InvalidSetting(
            f"the log does not hold the entry {(after or b'').hex()}: its newest entries are missing, it was "
            "restored from a backup and went on, or it is another log"
        )
    # Without its beginning, nothing says how many entries were cut off, or that the log is this service's.
    if first.sequence and after is None:
        raise InvalidSetting(
            f"the log begins with entry {first.sequence}: give the digest of the entry before it (--after), "
            "or the whole log"
        )
    return _VerifiedLog(num_entries=count, first=first.sequence, head=previous)


def parse_digest(text: str) -> bytes:
    """Return the digest that a person noted.

    Raises:
        InvalidSetting: it is not 64 hexadecimal digits.
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise InvalidSetting(f"{text!r} is no digest of an entry: expected 64 hexadecimal digits")
    return found


def _read(line: bytes, place: int) -> AuditEntry:
    if not line.startswith(b"{"):
        raise InvalidSetting(
            f"line {place + 1} of the log is no entry: expected a JSON object, as `audit export` writes it"
        )
    try:
        return decode(AuditEntry, line)
    except InvalidTask as error:
        raise InvalidSetting(f"line {place + 1} of the log is no entry: {error}") from None

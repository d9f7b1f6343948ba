"""Entries of the audit log, as the admin API answers them."""

import json
from typing import Self

from adserver.messages.base import Message, Whole
from maskedlark.audit_log import AuditEntry
from maskedlark.canonical import decode


class ActorMessage(Message):
    """The actor of an act, and where it came from."""

    kind: str
    name: str
    identity: str
    address: str


class AuditEntryMessage(Message):
    """One entry: its digest, and what the digest is of."""

    sequence: Whole
    previous: str
    at: Whole
    act: str
    actor: ActorMessage
    subject: dict[str, str]
    outcome: str
    count: Whole

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Describe an entry."""
        return cls.model_validate_json(entry.encode())

    def value(self) -> AuditEntry:
        """Return the entry.

        Raises:
            InvalidTask: it is malformed.
        """
        # Back to the bytes that the digest is of: whoever reads the log from afar can verify the chain.
        plain = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return decode(AuditEntry, plain.encode())


class AuditPage(Message):
    """A part of the audit log, oldest first."""

    items: tuple[AuditEntryMessage, ...]
    next_after: int | None = None
    """`after` of the next page; null on the last one."""

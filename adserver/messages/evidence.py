"""Evidence of releases, as the admin API answers it."""

from typing import Self

from adserver.messages.base import Message
from maskedlark.releases.statement import Evidence


class EvidenceMessage(Message):
    """One release's evidence: the text of the file that `adserver statement verify` verifies."""

    release_id: str
    kind: str
    evidence: str

    @classmethod
    def of(cls, evidence: Evidence) -> Self:
        """Describe the evidence of a release."""
        # Any of them: `verify` has seen that they are of one release.
        one = evidence.statements[0].statement
        return cls(release_id=one.release_id.hex(), kind=one.kind, evidence=evidence.encode().decode())

    def value(self) -> Evidence:
        """Return the evidence, verified.

        Raises:
            InvalidTask: it does not hold.
        """
        return Evidence.read(self.evidence.encode())


class EvidenceList(Message):
    """The evidence of all releases of a task, by the last answer of each."""

    items: tuple[EvidenceMessage, ...]

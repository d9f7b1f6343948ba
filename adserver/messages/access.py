"""Tokens and logged-in browsers, without their secrets, and the request for a token."""

from typing import Self

from pydantic import Field

from adserver.messages.base import Message, RequestBody
from adserver.records.access import GrantKind, Scope
from adserver.records.summaries import GrantSummary
from maskedlark.frozen import pick_attributes

_SAME = ("kind", "scope", "name", "created_at", "expires_at")


class GrantMessage(Message):
    """A token, or a browser that is logged in."""

    id: str
    kind: GrantKind
    scope: Scope
    name: str
    created_at: float
    expires_at: float

    @classmethod
    def of(cls, grant: GrantSummary) -> Self:
        """Describe a grant."""
        return cls(id=grant.grant_id, **pick_attributes(grant, _SAME))

    def value(self) -> GrantSummary:
        """Return the grant."""
        return GrantSummary(grant_id=self.id, **pick_attributes(self, _SAME))


class GrantsMessage(Message):
    """All tokens and logged-in browsers, oldest first."""

    items: tuple[GrantMessage, ...]


class CreateToken(RequestBody):
    """A token to create, below the caller's own scope and of no longer life."""

    scope: Scope
    name: str = Field(max_length=100, description="The token's purpose, shown in lists.")
    days: float = Field(gt=0.0, le=3_650.0)


class TokenMessage(Message):
    """A new token. It is not stored and cannot be shown again."""

    # Shown once, and so in no log of this message.
    token: str = Field(repr=False)

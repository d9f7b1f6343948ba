"""Access to the admin API and the dashboard: what a grant is, and what it allows."""

from enum import StrEnum, unique
from hashlib import sha256

from maskedlark.frozen import frozen


@unique
class Scope(StrEnum):
    """What a grant allows."""

    READ = "read"
    """Look at everything; change and spend nothing."""
    OPERATE = "operate"
    """Also submit, cancel and resume jobs, and ask queries: whatever spends a budget."""
    TASKS = "tasks"
    """Also make tasks: whatever says how large a budget is."""
    TOKENS = "tokens"
    """Also list and revoke tokens, and make ones of the scopes above."""

    def allows(self, needed: "Scope") -> bool:
        """Return whether this scope includes the one that an act needs; each includes those before it."""
        # The order of the members above is the order of scopes.
        ascending = tuple(Scope)
        return ascending.index(self) >= ascending.index(needed)


@unique
class GrantKind(StrEnum):
    """How a grant is used."""

    TOKEN = "token"  # noqa: S105 - the name of a kind
    """In the Authorization header, by programs, until it is revoked or ends."""
    LOGIN = "login"
    """Once, in a link: it becomes a session."""
    SESSION = "session"
    """In a browser's cookie."""
    OIDC = "oidc"
    """In the Authorization header: an access token of the sign-in provider, which is never stored here."""


@frozen
class Grant:
    """A grant as stored: of its secret only the digest.

    Attributes:
        digest: SHA-256 of the secret.
        kind: How it is used.
        scope: What it allows.
        name: For people: what it is for.
        created_at: Unix seconds.
        expires_at: Unix seconds.
    """

    digest: bytes
    kind: GrantKind
    scope: Scope
    name: str
    created_at: float
    expires_at: float

    @property
    def grant_id(self) -> str:
        """The start of the digest, in hex: what people revoke it by. It tells nothing of the secret."""
        return self.digest.hex()[:12]


def digest_of(secret: str) -> bytes:
    """Return the stored digest of a secret: 256 random bits need only one round of SHA-256."""
    return sha256(secret.encode()).digest()

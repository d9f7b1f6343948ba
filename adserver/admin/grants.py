"""A cached view of the grants for access control: requests that only read may use an answer for a moment.

Ten open pages ask several times a second. What changes or spends asks the database each time.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from adserver.records.access import Grant, GrantKind, digest_of
from adserver.store.access import AccessStore
from maskedlark.audit_log import Actor, ActorKind, clean_name

if TYPE_CHECKING:
    from adserver.admin.oidc import OidcProvider, Person

BELIEVED_S: Final = 0.7
"""How long a grant that was revoked elsewhere may still look."""
_MOST: Final = 1_024


def actor_of_grant(grant: Grant, address: str) -> Actor:
    """Return how the audit log names the holder of a grant."""
    kind = ActorKind.SESSION if grant.kind is GrantKind.SESSION else ActorKind.TOKEN
    return Actor(kind=kind, name=clean_name(grant.name), identity=grant.grant_id, address=clean_name(address))


class Grants:
    """The grants of an ad server, those of a moment ago at hand. Safe to share between threads."""

    def __init__(
        self,
        access: AccessStore,
        provider: "OidcProvider | None" = None,
        *,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the grants of a store, and those of a sign-in provider; `elapsed` counts seconds."""
        self._access = access
        self._provider = provider
        self._elapsed = elapsed
        self._found: dict[tuple[bytes, GrantKind], tuple[Grant, float]] = {}

    def at_hand(self, secret: str, kind: GrantKind) -> Grant | None:
        """Return the grant of a secret that was found a moment ago, or None: then call `find`."""
        grant, found_at = self._found.get((digest_of(secret), kind), (None, 0.0))
        return grant if self._elapsed() - found_at < BELIEVED_S else None

    def find(self, secret: str, kind: GrantKind) -> Grant | None:
        """Look up the grant of a secret in the database, if it is of the kind and has not ended.

        What is no token of this server may be one of the provider.
        """
        # From before the lookup: one that is revoked meanwhile is not believed for longer
        asked_at = self._elapsed()
        grant, key = self._access.find(secret, [kind]), (digest_of(secret), kind)
        if grant is None and kind is GrantKind.TOKEN and self._provider is not None:
            grant = self._provider.grant_of(secret)
        if grant is None:
            self._found.pop(key, None)
            return None
        # Only secrets that are valid come this far, so that strangers cannot empty it
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[key] = (grant, asked_at)
        return grant

    def holds(self, grant: Grant) -> bool:
        """Check in the database, as `AccessStore.holds` does; a provider's token holds until it ends."""
        if grant.kind is GrantKind.OIDC:
            return self._provider is not None and self._provider.holds(grant)
        return self._access.holds(grant)

    def sign_in(self, person: "Person", lasts_s: float) -> str:
        """Begin a session of a person whom the provider signed in and return its secret."""
        return self._access.make(GrantKind.SESSION, person.scope, name=person.name, lasts_s=lasts_s)

    def log_in(self, secret: str) -> str | None:
        """Log in, as `AccessStore.log_in` does."""
        return self._access.log_in(secret)

    def end(self, grant: Grant) -> None:
        """End a grant, here at once. Idempotent."""
        self._access.end(grant)
        self._found.pop((grant.digest, grant.kind), None)

"""Grants of access: made, used, listed and revoked. Secrets are shown once and never stored.

store = AccessStore(engine, time.time)
secret = store.make(GrantKind.TOKEN, Scope.READ, name="grafana", lasts_s=90 * 86_400)
store.find(secret, [GrantKind.TOKEN])       # the grant, or None
"""

import secrets
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Engine, bindparam, delete, insert, select

from adserver.records.access import Grant, GrantKind, Scope, digest_of
from adserver.store.audit_log import log_act
from adserver.store.database import Clock
from adserver.store.schema import access_grants
from maskedlark.audit_log import AuditAct
from maskedlark.errors import InvalidSetting
from maskedlark.escape import escape
from maskedlark.frozen import pick_attributes
from maskedlark.runtime.database import reading
from maskedlark.terminal.plural import plural

LOGIN_S: Final = 600.0
"""How long a login link waits to be used."""
SESSION_S: Final = 12 * 3_600.0
"""How long a browser stays logged in."""
REVOCABLE: Final = (GrantKind.TOKEN, GrantKind.SESSION)
"""Kinds of grants that people list and revoke: a login link ends by itself."""
_SECRET_BYTES: Final = 32
# Grants that an error lists
_MOST_LISTED: Final = 5
# By which a secret that lies about is known for what it is.
_PREFIXES: Final = {GrantKind.TOKEN: "mlt_", GrantKind.LOGIN: "mll_", GrantKind.SESSION: "mls_"}
# Built once: it is asked with every request.
_FOUND: Final = select(access_grants).where(
    access_grants.c.digest == bindparam("asked_digest"),
    access_grants.c.kind.in_(bindparam("asked_kinds", expanding=True)),
    access_grants.c.expires_at > bindparam("now_s"),
)


class AccessStore:
    """The grants of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def make(self, kind: GrantKind, scope: Scope, *, name: str, lasts_s: float) -> str:
        """Create a grant and return its secret, which is not stored; delete grants that have ended.

        Of the name visible characters are kept; others are escaped.
        """
        secret = _PREFIXES[kind] + secrets.token_urlsafe(_SECRET_BYTES)
        now_s = self._clock()
        grant = Grant(
            digest=digest_of(secret),
            kind=kind,
            scope=scope,
            name=escape(name),
            created_at=now_s,
            expires_at=now_s + lasts_s,
        )
        with self._engine.begin() as connection:
            # Here, since a new grant is the only thing that makes the table longer.
            connection.execute(delete(access_grants).where(access_grants.c.expires_at <= now_s))
            connection.execute(insert(access_grants).values(asdict(grant)))
            act = AuditAct.LOG_IN if kind is GrantKind.SESSION else AuditAct.CREATE_TOKEN
            log_act(connection, act, **_about(grant))
        return secret

    def find(self, secret: str, kinds: Collection[GrantKind]) -> Grant | None:
        """Return the grant of a secret, if it is of one of the kinds and has not ended."""
        return self._found(digest_of(secret), kinds)

    def holds(self, grant: Grant) -> bool:
        """Return whether a grant that was found is still valid: not ended and not revoked since."""
        return self._found(grant.digest, [grant.kind]) is not None

    def log_in(self, secret: str) -> str | None:
        """Turn a login link's secret into a session's; None if it was used before, or has ended.

        Guarantees: if several visitors use one link at the same time, one is logged in.
        """
        login = self.find(secret, [GrantKind.LOGIN])
        if login is None:
            return None
        with self._engine.begin() as connection:
            # Whoever deletes the row has used the link; a second visitor finds none to delete.
            used = delete(access_grants).where(access_grants.c.digest == login.digest)
            if connection.execute(used).rowcount != 1:
                return None
        return self.make(GrantKind.SESSION, login.scope, name=login.name, lasts_s=SESSION_S)

    def all(self, kinds: Collection[GrantKind]) -> list[Grant]:
        """Return the grants of some kinds that have not ended, oldest first."""
        asked = select(access_grants).where(
            access_grants.c.kind.in_(kinds), access_grants.c.expires_at > self._clock()
        )
        with reading(self._engine) as connection:
            return [_grant(row) for row in connection.execute(asked.order_by(access_grants.c.created_at))]

    def end(self, grant: Grant) -> None:
        """End a grant. Idempotent."""
        self._end(grant, AuditAct.LOG_OUT)

    def _end(self, grant: Grant, act: AuditAct) -> None:
        with self._engine.begin() as connection:
            ended = delete(access_grants).where(access_grants.c.digest == grant.digest)
            if connection.execute(ended).rowcount:
                log_act(connection, act, **_about(grant))

    def revoke(self, typed: str, kinds: Collection[GrantKind]) -> Grant:
        """End the one grant of some kinds whose id starts so, or whose whole name it is; the grant.

        Raises:
            InvalidSetting: none does, or several do.
        """
        # A name counts as much as the start of an id: neither may stand for a grant that was not meant
        found = [one for one in self.all(kinds) if one.grant_id.startswith(typed) or one.name == typed]
        # A whole id is no name, or one that is called so would keep another from being revoked
        found = [one for one in found if one.grant_id == typed] or found
        if not found:
            raise InvalidSetting(
                f"no token or session has the name {typed!r}, or an id that starts so: see `adserver token "
                "list`"
            )
        if len(found) > 1 or not typed:
            listed = ", ".join(f"{one.grant_id} ({one.name!r})" for one in found[:_MOST_LISTED])
            raise InvalidSetting(
                f"{plural(len(found), 'token or session has', 'tokens and sessions have')} the name "
                f"{typed!r}, or an id that starts so: give more digits of one's id, from "
                f"`adserver token list`: {listed}"
            )
        self._end(found[0], AuditAct.REVOKE_TOKEN)
        return found[0]

    def _found(self, digest: bytes, kinds: Collection[GrantKind]) -> Grant | None:
        asked = {"asked_digest": digest, "asked_kinds": list(kinds), "now_s": self._clock()}
        with reading(self._engine) as connection:
            row = connection.execute(_FOUND, asked).one_or_none()
        return None if row is None else _grant(row)


def _about(grant: Grant) -> dict[str, str]:
    """Return what the audit log says of a grant: never its secret."""
    return {"token": grant.grant_id, "kind": grant.kind.value, "scope": grant.scope.value, "name": grant.name}


def _grant(row: Any) -> Grant:
    return Grant(
        digest=bytes(row.digest),
        kind=GrantKind(row.kind),
        scope=Scope(row.scope),
        **pick_attributes(row, ("name", "created_at", "expires_at")),
    )

"""The endpoints of tokens and logged-in browsers, list, create and revoke, and of the audit log."""

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from adserver.admin.guarded_route import Caller, Context, Parameters, guarded_router
from adserver.admin.paging import Typed
from adserver.messages.access import CreateToken, GrantMessage, GrantsMessage, TokenMessage
from adserver.messages.audit_log import AuditEntryMessage, AuditPage
from adserver.messages.base import MOST_INTEGER
from adserver.records.access import Scope
from maskedlark.errors import InvalidTask

managing_tokens = guarded_router(Scope.TOKENS)
ROUTERS: Final = (managing_tokens,)
_DAY_S: Final = 86_400.0


class _AuditParameters(Parameters):
    """The part of the audit log to return."""

    after: Typed = Field(-1, description="Number of the newest entry that is known.", ge=-1, le=MOST_INTEGER)
    limit: Typed = Field(1_000, description="The most entries to return.", ge=1, le=1_000)
    newest: bool = Field(False, description="Whether to leave out the oldest of them, not the newest.")


@managing_tokens.get("/audit-log", summary="Show who did what, oldest first")
def _audit_log(context: Context, page: Annotated[_AuditParameters, Query()]) -> AuditPage:
    """Return a part of the audit log. Its entries name tokens and addresses, so it needs scope `tokens`."""
    found = context.server.audit_log(after=page.after, limit=page.limit, is_newest=page.newest)
    is_more = len(found) == page.limit
    return AuditPage(
        items=tuple(map(AuditEntryMessage.of, found)), next_after=found[-1].sequence if is_more else None
    )


@managing_tokens.get("/tokens", summary="List tokens and logged-in browsers, oldest first")
def _list_tokens(context: Context) -> GrantsMessage:
    """Return tokens and logged-in browsers that have not ended, without their secrets."""
    return GrantsMessage(items=tuple(map(GrantMessage.of, context.server.tokens())))


@managing_tokens.post("/tokens", summary="Create a token below the caller's scope", status_code=201)
def _create_token(context: Context, caller: Caller, body: CreateToken) -> TokenMessage:
    """Create a token. A leaked grant cannot make one of the same scope, or one that outlives it."""
    left_days = (caller.expires_at - context.clock()) / _DAY_S
    if body.scope.allows(caller.scope):
        raise InvalidTask(f"scope is {body.scope}: expected one below {caller.scope}, the caller's own")
    if body.days > left_days:
        raise InvalidTask(
            f"days is {body.days:g}: expected at most {left_days:g}, when the caller's own grant ends"
        )
    return TokenMessage(token=context.server.create_token(body.scope, name=body.name, days=body.days))


@managing_tokens.post("/tokens/{token}/revoke", summary="Revoke a token or log a browser out")
def _revoke_token(context: Context, token: str) -> GrantMessage:
    """Revoke the one token or session of this name, or whose id starts so, with immediate effect."""
    return GrantMessage.of(context.server.revoke_token(token))

"""The endpoints of tokens and logged-in browsers: list, create and revoke."""

from typing import Final

from adserver.admin.guarded_route import Caller, Context, guarded_router
from adserver.messages.access import CreateToken, GrantMessage, GrantsMessage, TokenMessage
from adserver.records.access import Scope
from maskedlark.errors import InvalidTask

managing_tokens = guarded_router(Scope.TOKENS)
ROUTERS: Final = (managing_tokens,)
_DAY_S: Final = 86_400.0


@managing_tokens.get("/tokens", summary="List tokens and logged-in browsers, oldest first")
def list_tokens(context: Context) -> GrantsMessage:
    """Return tokens and logged-in browsers that have not ended, without their secrets."""
    return GrantsMessage(items=tuple(map(GrantMessage.of, context.server.tokens())))


@managing_tokens.post("/tokens", summary="Create a token below the caller's scope", status_code=201)
def create_token(context: Context, caller: Caller, body: CreateToken) -> TokenMessage:
    """Create a token. A leaked grant cannot make one of its own scope, or one that outlives it."""
    left_days = (caller.expires_at - context.clock()) / _DAY_S
    if body.scope.allows(caller.scope):
        raise InvalidTask(f"scope is {body.scope}: expected one below {caller.scope}, the caller's own")
    if body.days > left_days:
        raise InvalidTask(
            f"days is {body.days:g}: expected at most {left_days:g}, when the caller's own grant ends"
        )
    return TokenMessage(token=context.server.create_token(body.scope, name=body.name, days=body.days))


@managing_tokens.post("/tokens/{token}/revoke", summary="Revoke a token or log a browser out")
def revoke_token(context: Context, token: str) -> GrantMessage:
    """Revoke the one token or session whose id starts so, with immediate effect."""
    return GrantMessage.of(context.server.revoke_token(token))

"""`adserver dashboard` and `adserver token`: who may look at this ad server, and who may operate it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.options import DatabaseOption, DataOption, JsonOption, open_store
from adserver.records.access import Grant, GrantKind, Scope
from adserver.views.printing import moment, print_json, print_table
from maskedlark.terminal.options import option

if TYPE_CHECKING:
    from adserver.store.access import AccessStore

_DAY_S: Final = 86_400.0
_PATIENCE_S: Final = 600.0

ScopeOption = Annotated[
    Scope,
    option(
        "read: view everything. operate: also submit, cancel and resume jobs, and run queries. "
        "tasks: also create tasks.",
        "--scope",
    ),
]


def login_command(
    data: DataOption,
    scope: ScopeOption = Scope.OPERATE,
    wait: Annotated[
        bool, option("Wait up to ten minutes for a dashboard that is starting for the first time.", "--wait")
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """Print a link that logs one browser in, once, within ten minutes."""
    from adserver.dashboard.serving import dashboard_url  # starlette
    from adserver.store.access import LOGIN_S

    url = dashboard_url(data, patience_s=_PATIENCE_S if wait else 0.0)
    secret = _store(data, database).make(GrantKind.LOGIN, scope, name="dashboard", lasts_s=LOGIN_S)
    typer.echo(f"{url}/login?code={secret}")


def create_command(
    data: DataOption,
    name: Annotated[str, option("A name for the token's purpose, shown by `adserver token list`.")],
    scope: ScopeOption = Scope.READ,
    days: Annotated[float, option("Days until the token expires.", min=0.001, max=3_650.0)] = 90.0,
    database: DatabaseOption = None,
) -> None:
    """Create a token for the admin API and print it. It is not stored and cannot be shown again."""
    store = _store(data, database)
    typer.echo(store.make(GrantKind.TOKEN, scope, name=name[:100], lasts_s=days * _DAY_S))


def list_command(data: DataOption, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List tokens and logged-in browsers, without their secrets."""
    grants = _store(data, database).all([GrantKind.TOKEN, GrantKind.SESSION])
    if as_json:
        print_json([_as_json(one) for one in grants])
        return
    print_table(("id", "kind", "scope", "name", "made", "ends"), [_row(one) for one in grants])


def revoke_command(
    data: DataOption,
    token: Annotated[str, typer.Argument(help="The start of the id of a token or session.")],
    database: DatabaseOption = None,
) -> None:
    """Revoke a token or log a browser out, with immediate effect."""
    ended = _store(data, database).revoke(token, [GrantKind.TOKEN, GrantKind.SESSION])
    typer.echo(f"{ended.kind} {ended.grant_id} ({ended.name}) is revoked")


def _store(data: Path, database: str | None) -> "AccessStore":
    from adserver.store.access import AccessStore

    return AccessStore(open_store(data, database), time.time)


def _row(grant: Grant) -> tuple[str, ...]:
    made, ends = moment(grant.created_at), moment(grant.expires_at)
    return grant.grant_id, grant.kind.value, grant.scope.value, grant.name, made, ends


def _as_json(grant: Grant) -> dict[str, str | float]:
    return {
        "id": grant.grant_id,
        "kind": grant.kind.value,
        "scope": grant.scope.value,
        "name": grant.name,
        "created_at": grant.created_at,
        "expires_at": grant.expires_at,
    }

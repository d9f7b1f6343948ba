"""`adserver dashboard` and `adserver token`: access for viewers and operators of an ad server."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.options import DatabaseOption, DataOption, JsonOption
from adserver.cli.target import server_of
from adserver.records.access import GrantKind, Scope
from adserver.records.summaries import GrantSummary
from adserver.views.printing import print_json, print_table
from maskedlark.terminal.options import option, takes
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

_PATIENCE_S: Final = 600.0

ScopeOption = Annotated[
    Scope,
    option(
        "read: view everything. operate: also submit, cancel and resume jobs, and run queries. "
        "tasks: also create tasks. tokens: also list and revoke tokens, and create ones of the other scopes.",
        "--scope",
    ),
]


def _login_command(
    data: DataOption,
    scope: ScopeOption = Scope.OPERATE,
    wait: Annotated[
        bool, option("Wait up to ten minutes for a dashboard that is starting for the first time.", "--wait")
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """Print a link that logs one browser in, once, within ten minutes."""
    from adserver.dashboard.address import dashboard_url
    from adserver.store.access import LOGIN_S, AccessStore
    from adserver.store.database import open_store

    # Past `AdServer`: whoever may run this beside the server may log in, and nobody from afar (ADR 17)
    url = dashboard_url(data, patience_s=_PATIENCE_S if wait else 0.0)
    store = AccessStore(open_store(data, database), time.time)
    secret = store.make(GrantKind.LOGIN, scope, name="dashboard", lasts_s=LOGIN_S)
    typer.echo(f"{url}/login?code={secret}")


@takes(server=server_of)
def _create_command(
    *,
    server: "AdServer",
    name: Annotated[str, option("A name for the token's purpose, shown by `adserver token list`.")],
    scope: ScopeOption = Scope.READ,
    days: Annotated[float, option("Days until the token expires.", min=0.001, max=3_650.0)] = 90.0,
) -> None:
    """Create a token for the admin API and print it. It is not stored and cannot be shown again."""
    typer.echo(server.create_token(scope, name=name, days=days))


@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List tokens and logged-in browsers, without their secrets."""
    grants = server.tokens()
    if as_json:
        from adserver.messages.access import GrantMessage

        print_json(list(map(GrantMessage.of, grants)))
        return
    print_table(("id", "kind", "scope", "name", "made", "ends"), [_row(one) for one in grants])


@takes(server=server_of)
def _revoke_command(
    *,
    # Not `token`: that is the option with which the command logs in at a remote ad server
    grant_id: Annotated[
        str,
        typer.Argument(help="The name of a token or session, or the start of its id.", metavar="TOKEN"),
    ],
    server: "AdServer",
) -> None:
    """Revoke a token or log a browser out, with immediate effect."""
    ended = server.revoke_token(grant_id)
    typer.echo(f"{ended.kind} {ended.grant_id} ({ended.name}) is revoked")


def _row(grant: GrantSummary) -> tuple[str, ...]:
    made, ends = format_utc(grant.created_at), format_utc(grant.expires_at)
    return grant.grant_id, grant.kind.value, grant.scope.value, grant.name, made, ends

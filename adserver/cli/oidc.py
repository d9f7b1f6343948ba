"""The options of `adserver serve` for sign-in by an OpenID Connect provider."""

from collections.abc import Sequence
from pathlib import Path

import typer

from adserver.records.access import Scope
from adserver.records.server_settings import OidcSettings


def oidc_of(
    *,
    issuer: str | None,
    client_id: str | None,
    secret_file: Path | None,
    groups: Sequence[str],
    groups_claim: str,
    audience: str | None,
) -> OidcSettings | None:
    """Return the settings of the options; None without --oidc-issuer.

    Raises:
        BadParameter: an option is missing, or a group's scope is unknown.
    """
    if issuer is None:
        # Else a forgotten issuer would leave a dashboard without the sign-in that its operator set up
        if client_id or secret_file or groups or audience:
            raise typer.BadParameter("the --oidc-... options require --oidc-issuer")
        return None
    if client_id is None:
        raise typer.BadParameter("--oidc-issuer requires --oidc-client-id")
    return OidcSettings(
        issuer=issuer,
        client_id=client_id,
        scopes=dict(map(_scope_of_group, groups)),
        secret_file=secret_file,
        groups_claim=groups_claim,
        audience=audience,
    )


def _scope_of_group(given: str) -> tuple[str, Scope]:
    # A provider's group names may hold =, scopes do not
    group, _, scope = given.rpartition("=")
    if not group or scope not in set(Scope):
        raise typer.BadParameter(
            f"--oidc-group {given!r}: expected GROUP=SCOPE with one of the scopes {', '.join(Scope)}"
        )
    return group, Scope(scope)

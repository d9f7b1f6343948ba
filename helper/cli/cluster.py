"""`helper cluster`: the secrets of a helper's own Ray cluster, and a certificate for each of its machines."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from maskedlark.terminal.options import option

cluster_app = typer.Typer(
    no_args_is_help=True, help="Create the secrets of this helper's own Ray cluster: tokens and certificates."
)

SecretsOption = Annotated[Path, option("Folder of the cluster's secrets.", "--secrets")]


@cluster_app.command("init")
def init_command(secrets: SecretsOption) -> None:
    """Make the join token, Ray's token and the authority of the machines' certificates."""
    from helper.trust.cluster_secrets import AUTHORITY_KEY, JOIN_FILE, RAY_FILE, write_cluster_secrets

    write_cluster_secrets(secrets, now=datetime.now(UTC))
    typer.echo(
        f"Next: copy {JOIN_FILE} and {RAY_FILE} to every machine of the cluster. Keep "
        f"{AUTHORITY_KEY} only here."
    )


@cluster_app.command("certificate")
def certificate_command(
    secrets: SecretsOption,
    host: Annotated[
        list[str],
        option("The machine's address in Ray, or a name that other machines use for it; repeatable."),
    ],
    out: Annotated[Path, option("Folder to write tls.key, tls.crt and ca.crt to.", "--out")],
    days: Annotated[int, option("Days that the certificate is valid.", min=1, max=3_650)] = 3_650,
) -> None:
    """Make the TLS key and certificate of one machine of the cluster."""
    from helper.trust.cluster_secrets import write_machine_certificate

    write_machine_certificate(secrets, out, hosts=tuple(host), now=datetime.now(UTC), days=days)
    typer.echo(
        f"Next: copy {out} to that machine, for RAY_TLS_SERVER_KEY, RAY_TLS_SERVER_CERT and RAY_TLS_CA_CERT."
    )

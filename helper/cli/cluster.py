"""`lark-helper cluster`: secrets of a helper's own Ray cluster, and a certificate for each machine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from maskedlark.terminal.options import option

cluster_app = typer.Typer(
    no_args_is_help=True,
    help="Create the secrets of this helper's own Ray cluster: tokens and certificates.",
)

SecretsOption = Annotated[Path, option("Folder of the cluster's secrets.", "--secrets")]


@cluster_app.command("init")
def _init_command(secrets: SecretsOption) -> None:
    """Make Ray's token and the authorities of the machines' certificates: for Ray, and for workers."""
    from helper.trust.cluster_secrets import AUTHORITY_KEY, RAY_FILE, WORKERS, write_cluster_secrets

    write_cluster_secrets(secrets, now=datetime.now(UTC))
    typer.echo(
        f"Next: copy {RAY_FILE} to every machine of the cluster. Keep {AUTHORITY_KEY} and "
        f"{WORKERS}-{AUTHORITY_KEY} only here."
    )


@cluster_app.command("certificate")
def _certificate_command(
    secrets: SecretsOption,
    host: Annotated[
        list[str],
        option("The machine's address in Ray, or a name that other machines use for it; repeatable."),
    ],
    out: Annotated[
        Path,
        option(
            "Folder to write tls.key, tls.crt and ca.crt to, and the same for workers in a folder of it.",
            "--out",
        ),
    ],
    days: Annotated[int, option("Days that the certificate is valid.", min=1, max=3_650)] = 3_650,
) -> None:
    """Make the TLS keys and certificates of one machine of the cluster: for Ray, and for workers."""
    from helper.trust.cluster_secrets import WORKERS, write_machine_certificate

    write_machine_certificate(secrets, out, hosts=tuple(host), now=datetime.now(UTC), days=days)
    typer.echo(
        f"Next: copy {out} to that machine, for RAY_TLS_SERVER_KEY, RAY_TLS_SERVER_CERT and RAY_TLS_CA_CERT; "
        f"its folder {WORKERS} is for --ray-worker-tls at the head, and HELPER_WORKER_TLS elsewhere."
    )

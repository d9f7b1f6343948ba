"""`helper certificate` and `adserver certificate`: how long the TLS certificates last, and their renewal."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from maskedlark.rpc.tls_files import TlsFiles

HELP: Final = "The TLS certificate that peers pin: show it, and renew it in two steps."
_DAYS: Final = 825


def certificate_app(envvar: str) -> typer.Typer:
    """Create a party's commands; --data, or an environment variable, names its data folder."""
    folder: Any = typer.Option(..., "--data", envvar=envvar, help="Folder of this party's own files.")
    lifetime: Any = typer.Option(
        _DAYS, "--days", min=1, max=3_650, help="How long the new certificate lives."
    )
    app = typer.Typer(no_args_is_help=True, help=HELP)

    @app.command("show")
    def show_command(data: Path = folder) -> None:
        """Show whom this party's certificate names, its fingerprint, and when it ends."""
        from maskedlark.rpc.tls_files import TlsFiles

        _show(TlsFiles.in_folder(data))

    @app.command("renew")
    def renew_command(
        data: Path = folder,
        days: int = lifetime,
    ) -> None:
        """Make a new key and certificate beside those in use, for peers to trust before they are used."""
        from maskedlark.rpc.renewal import prepare

        made = prepare(data, now=datetime.now(UTC), days=days)
        _show(made)
        typer.echo(f"Give {made.certificate} to every peer, to add it to its trusted.crt; then activate it.")

    @app.command("activate")
    def activate_command(data: Path = folder) -> None:
        """Use the renewed key and certificate from now on; a running server reads them at once."""
        from maskedlark.rpc.renewal import activate

        _show(activate(data))

    return app


def _show(files: "TlsFiles") -> None:
    from maskedlark.rpc.renewal import certificate_in
    from maskedlark.rpc.trust import fingerprint, names_in

    certificate = certificate_in(Path(files.certificate))
    typer.echo(f"names        {', '.join(sorted(names_in(certificate)))}")
    typer.echo(f"fingerprint  {fingerprint(certificate)}")
    typer.echo(f"ends         {certificate.not_valid_after_utc.isoformat(sep=' ', timespec='minutes')}")

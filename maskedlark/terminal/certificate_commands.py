"""`lark-helper certificate` and `adserver certificate`: TLS certificates and their renewal."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from maskedlark.errors import InvalidSetting
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography import x509

    from maskedlark.rpc.tls_files import TlsFiles

HELP: Final = "Show the TLS certificate that peers pin, or renew it in two steps."
_DAYS: Final = 825


def certificate_app(envvar: str, json_envvar: str | None = None) -> typer.Typer:
    """Create a party's commands; --data, or an environment variable, names its data folder.

    Args:
        envvar: The variable of --data.
        json_envvar: The variable of --json, if the party's other commands have one.
    """
    folder: Any = typer.Option(..., "--data", envvar=envvar, help="Folder of this party's own files.")
    json_option: Any = typer.Option(False, "--json", envvar=json_envvar, help="Print JSON for programs.")
    lifetime: Any = typer.Option(
        _DAYS, "--days", min=1, max=3_650, help="Days that the new certificate is valid."
    )
    hosts: Any = typer.Option(
        None,
        "--host",
        help="Host name, address or origin of this party, if tls.crt is lost; repeatable.",
        show_default="those in tls.crt",
    )
    wrapping: Any = typer.Option(
        ...,
        "--with",
        metavar="KEEPER",
        help="What wraps it: pkcs11:token=LABEL;object=LABEL, command, or file for a plain file.",
    )
    # Each command imports what it needs: help then shows without cryptography and gRPC.
    app = typer.Typer(no_args_is_help=True, help=HELP)

    @app.command("show")
    def show_command(data: Path = folder, as_json: bool = json_option) -> None:
        """Show the names in this party's certificate, its SHA-256 and end, and those that it trusts.

        Ends with 1 if a server would not use the trusted ones, and says why.
        """
        from maskedlark.rpc.tls_files import TlsFiles

        files = TlsFiles.in_folder(data)
        _check_there(files.certificate)
        _show_all(files, as_json=as_json)

    @app.command("renew")
    def renew_command(
        data: Path = folder,
        days: int = lifetime,
        host: list[str] | None = hosts,
    ) -> None:
        """Make a new key and certificate, for peers to trust before they replace those in use.

        Also if tls.key or tls.crt is lost.
        """
        from maskedlark.rpc.renewal import prepare

        made = prepare(data, now=datetime.now(UTC), days=days, names=host or ())
        _show(made)
        typer.echo(
            f"Next: give {made.certificate} to every peer to add to its trusted.crt; then activate it."
        )

    @app.command("activate")
    def activate_command(data: Path = folder) -> None:
        """Use the renewed key and certificate from now on; a running server reads them at once."""
        from maskedlark.rpc.renewal import activate

        _show(activate(data))

    @app.command("wrap")
    def wrap_command(keeper: str = wrapping, data: Path = folder) -> None:
        """Encrypt the TLS key with a key that an HSM or a KMS keeps; later renewals are encrypted too."""
        from maskedlark.rpc.tls_files import TlsFiles
        from maskedlark.runtime.key_envelope import wrap_file

        path = TlsFiles.in_folder(data).private_key
        _check_there(path)
        wrap_file(path, keeper)
        typer.echo(f"{path}: {keeper}")

    return app


def _check_there(path: Path) -> None:
    from maskedlark.runtime.ownership import check_is_folder

    check_is_folder(path.parent)
    if not path.exists():
        raise InvalidSetting(
            f"{path.parent} contains no {path.name}: give as --data the folder in which `keygen --host` made "
            "it, restore it from a backup, or make another with `certificate renew --host HOST`"
        )


def _show(files: "TlsFiles") -> None:
    from maskedlark.rpc.renewal import certificates_in
    from maskedlark.rpc.trust import names_in, sha256_of

    certificate = certificates_in(files.certificate)[0]
    typer.echo(f"names               {_names(names_in(certificate))}")
    typer.echo(f"certificate sha256  {sha256_of(certificate)}")
    typer.echo(f"ends                {_end(certificate)}")


def _show_all(files: "TlsFiles", *, as_json: bool) -> None:
    """Print this party's certificate, then each in trusted.crt.

    Raises:
        InvalidSetting: a server would not use those in trusted.crt, after they were printed.
    """
    from maskedlark.rpc.renewal import certificates_in
    from maskedlark.rpc.trust import names_in, sha256_of

    own, path = certificates_in(files.certificate)[0], files.trusted_authorities
    trusted = certificates_in(path) if path.is_file() and path.read_bytes().strip() else []
    fault = _fault_in_trust(files) if trusted else ""
    if as_json:
        listed = [_as_json(one) for one in trusted]
        typer.echo(json.dumps({**_as_json(own), "trusted": listed, "fault": fault}))
    else:
        _show(files)
        # A server that runs keeps to what it read before, and one that starts ends
        begins = "not used" if fault else "trusts"
        for one in trusted:
            typer.echo(f"{begins:<20}{_names(names_in(one))} (sha256 {sha256_of(one)}), ends {_end(one)}")
    if fault:
        raise InvalidSetting(f"no server uses {path} as it is: {fault}")


def _fault_in_trust(files: "TlsFiles") -> str:
    """Return why a server would not use the trusted certificates; empty if it would."""
    from maskedlark.rpc.trust import Trust

    trusted, names = files.trusted_authorities, files.authority_names
    try:
        Trust.parse(trusted.read_bytes(), names.read_bytes() if names.exists() else b"", trusted)
    except InvalidSetting as error:
        return str(error)
    return ""


def _as_json(certificate: "x509.Certificate") -> dict[str, Any]:
    from maskedlark.rpc.trust import names_in, sha256_of

    return {
        "names": sorted(names_in(certificate)),
        "sha256": sha256_of(certificate),
        "ends_at": certificate.not_valid_after_utc.timestamp(),
    }


def _end(certificate: "x509.Certificate") -> str:
    from maskedlark.rpc.tls_files import time_left

    return f"{format_utc(certificate.not_valid_after_utc.timestamp())}, {time_left(certificate)}"


def _names(names: "Iterable[str]") -> str:
    from maskedlark.escape import escape

    return escape(", ".join(sorted(names))) or "(no names)"

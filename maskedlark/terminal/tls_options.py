"""What a server's and its clients' TLS options mean together."""

from pathlib import Path

import typer

from maskedlark.rpc.tls_files import TlsFiles


def _missing_of(files: TlsFiles) -> str:
    folder = files.certificate.parent
    if folder.exists() and not folder.is_dir():
        return f"{folder} is not a folder"
    if not folder.exists():
        return f"{folder} does not exist: correct it, or run `lark-helper keygen` or `adserver keygen` first"
    return f"{files.missing} does not exist"


def tls_files(
    *,
    insecure: bool,
    certificate: Path | None,
    private_key: Path | None,
    authorities: Path | None,
    folder: Path | None = None,
) -> TlsFiles | None:
    """Return the TLS files that the options name, or those that `keygen` made in the party's folder.

    None if --insecure was asked for by name.

    Raises:
        typer.BadParameter: only some files are named, one is missing, or --insecure is given too.
    """
    given = (certificate, private_key, authorities)
    if insecure and not any(given):
        return None
    own = TlsFiles.in_folder(folder) if folder is not None and not insecure and not any(given) else None
    if own is not None and own.missing is None:
        return own
    if insecure or certificate is None or private_key is None or authorities is None:
        instead = (
            ""
            if own is None
            else f"; without these options, the files from `keygen` are used, but {_missing_of(own)}"
        )
        by_folder = "" if folder or insecure or any(given) else "--data with the files from `keygen`, or "
        raise typer.BadParameter(
            f"TLS is not configured: give {by_folder}all of --tls-cert, --tls-key and --tls-ca, or only "
            f"--insecure{instead}"
        )
    files = TlsFiles(certificate=certificate, private_key=private_key, trusted_authorities=authorities)
    if files.missing is not None:
        raise typer.BadParameter(f"{files.missing} is not a file: give the path of an existing PEM file")
    return files

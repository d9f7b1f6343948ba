"""The options that several of the helper's commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from maskedlark.terminal.options import option, panel

if TYPE_CHECKING:
    from maskedlark.rpc.tls_files import TlsFiles

_tls = panel("TLS")

DataOption = Annotated[
    Path, option("Folder of this helper's keys, ledger and datasets.", "--data", envvar="HELPER_DATA")
]
OptionalDataOption = Annotated[
    Path | None, option("Folder of this helper's keys, ledger and datasets.", "--data", envvar="HELPER_DATA")
]
DatabaseOption = Annotated[
    str | None,
    option(
        "SQLAlchemy URL of the database; default: SQLite in --data.", "--database", envvar="HELPER_DATABASE"
    ),
]
JsonOption = Annotated[bool, option("Print JSON for programs.", "--json", envvar="HELPER_JSON")]


def tls_of(
    *,
    data: OptionalDataOption = None,
    insecure: Annotated[bool, _tls("No TLS; loopback addresses only.", "--insecure")] = False,
    tls_cert: Annotated[Path | None, _tls("PEM: this helper's certificate chain.")] = None,
    tls_key: Annotated[Path | None, _tls("PEM: the certificate's private key.")] = None,
    tls_ca: Annotated[Path | None, _tls("PEM: the authorities that sign peers' certificates.")] = None,
) -> "TlsFiles | None":
    """Return the TLS files that the options name, or those in --data; see `tls_files`."""
    from maskedlark.terminal.tls_options import tls_files

    return tls_files(
        insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
    )

"""The options that several of the helper's commands share."""

from pathlib import Path
from typing import Annotated

from maskedlark.terminal.options import option, panel

_tls = panel("TLS")

DataOption = Annotated[
    Path, option("Folder of this helper's keys, ledger and datasets.", "--data", envvar="HELPER_DATA")
]
DatabaseOption = Annotated[
    str | None,
    option(
        "SQLAlchemy URL of another database than SQLite in --data.", "--database", envvar="HELPER_DATABASE"
    ),
]
InsecureOption = Annotated[bool, _tls("No TLS; loopback addresses only.", "--insecure")]
TlsCertOption = Annotated[Path | None, _tls("PEM: our certificate chain.", "--tls-cert")]
TlsKeyOption = Annotated[Path | None, _tls("PEM: the certificate's private key.", "--tls-key")]
TlsCaOption = Annotated[Path | None, _tls("PEM: whom we trust to certify peers.", "--tls-ca")]
JsonOption = Annotated[bool, option("Print JSON for programs.", "--json", envvar="HELPER_JSON")]

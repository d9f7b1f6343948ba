"""The options that commands share.

Which source, and how connections are protected; and what their values mean together.
"""

from pathlib import Path
from typing import Annotated

import typer

from browser_sim.binning import Binning
from browser_sim.endpoint import Protection
from browser_sim.sources import SourceKind, SourceSettings
from browser_sim.sources.table import TableSettings
from maskedlark.reports.task import LabelKind
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import TrustOnly

_SOURCE = "Source"
_PROTECTION = "Protection"

SourceOption = Annotated[
    SourceKind, typer.Option("--source", rich_help_panel=_SOURCE, help="Where records come from.")
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", rich_help_panel=_SOURCE, help="csv: a table in UTF-8 with a header.")
]
LabelOption = Annotated[
    str | None, typer.Option("--label", rich_help_panel=_SOURCE, help="csv: the label's column.")
]
LabelKindOption = Annotated[
    LabelKind, typer.Option("--label-kind", rich_help_panel=_SOURCE, help="csv: what labels are.")
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", rich_help_panel=_SOURCE, help="csv: a column to leave out; repeatable."),
]
BinningOption = Annotated[
    Binning,
    typer.Option("--binning", rich_help_panel=_SOURCE, help="csv: where bins of numeric columns lie."),
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="NAME[=COLUMN]",
        rich_help_panel=_SOURCE,
        help="csv: a measured value's column; repeatable.",
    ),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="NAME[=COLUMN]",
        rich_help_panel=_SOURCE,
        help="csv: a measured key's column; repeatable.",
    ),
]
BinsOption = Annotated[
    int,
    typer.Option("--bins", rich_help_panel=_SOURCE, min=2, max=256, help="csv: bins of a numeric column."),
]
MnistDirOption = Annotated[
    Path | None,
    typer.Option(
        "--mnist-dir", rich_help_panel=_SOURCE, help="mnist: idx files; default $MASKEDLARK_DATA/mnist."
    ),
]
SyntheticFeaturesOption = Annotated[
    int,
    typer.Option(
        "--synthetic-features", rich_help_panel=_SOURCE, min=1, max=65_536, help="synthetic: the width."
    ),
]
SyntheticRowsOption = Annotated[
    int, typer.Option("--synthetic-rows", rich_help_panel=_SOURCE, min=1, help="synthetic: how many records.")
]
TruthOption = Annotated[
    Path | None,
    typer.Option("--truth", rich_help_panel=_SOURCE, help="synthetic: write the true model here."),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        max=(1 << 63) - 1,
        help="Replay everything from this number. Masks are then predictable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", rich_help_panel=_PROTECTION, help="Allow plaintext, to loopback only.")
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", rich_help_panel=_PROTECTION, help="PEM: own certificate chain, if any."),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", rich_help_panel=_PROTECTION, help="PEM: its private key.")
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="BROWSER_SIM_TLS_CA",
        rich_help_panel=_PROTECTION,
        help="PEM: authorities to trust peers by.",
    ),
]
TrustHelperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-helper",
        rich_help_panel=_PROTECTION,
        help="Ed25519 key (hex) of a trusted helper; repeatable. Default: any.",
    ),
]


def source_settings(
    *,
    source: SourceKind,
    csv: Path | None,
    label: str | None,
    label_kind: LabelKind,
    ignore: list[str] | None,
    binning: Binning,
    bins: int,
    value: list[str] | None = None,
    key: list[str] | None = None,
    mnist_dir: Path | None,
    synthetic_features: int,
    synthetic_rows: int,
    truth: Path | None,
) -> SourceSettings:
    """The source that the options describe, or typer.BadParameter if one that it needs is missing."""
    table = None
    if source is SourceKind.CSV:
        if csv is None or label is None:
            raise typer.BadParameter("source csv needs --csv FILE and --label COLUMN")
        table = TableSettings(
            path=csv,
            label=label,
            label_kind=label_kind,
            ignore=tuple(ignore or ()),
            binning=binning,
            bins=bins,
            values=_columns(value),
            keys=_columns(key),
        )
    return SourceSettings(
        kind=source,
        table=table,
        mnist_folder=mnist_dir,
        synthetic_features=synthetic_features,
        synthetic_rows=synthetic_rows,
        truth=truth,
    )


def _columns(typed: list[str] | None) -> dict[str, str]:
    """Columns by name, from NAME=COLUMN, or NAME where the column is called so too."""
    return {name: column or name for name, _, column in (one.partition("=") for one in typed or ())}


def protection(
    *, insecure: bool, certificate: Path | None, private_key: Path | None, authorities: Path | None
) -> Protection:
    """How connections are protected, or typer.BadParameter if the TLS files are not complete."""
    given = [path for path in (certificate, private_key, authorities) if path is not None]
    if not given:
        return Protection(insecure=insecure)
    if insecure or authorities is None or (certificate is None) is not (private_key is None):
        raise typer.BadParameter(
            "give --tls-ca, or all of --tls-cert, --tls-key and --tls-ca, or none; and not with --insecure"
        )
    for path in given:
        if not path.is_file():
            raise typer.BadParameter(f"{path} is not a file")
    if certificate is None or private_key is None:
        return Protection(tls=TrustOnly(trusted_authorities=authorities))
    return Protection(
        tls=TlsFiles(certificate=certificate, private_key=private_key, trusted_authorities=authorities)
    )


def trusted_helpers(keys: list[str] | None) -> tuple[bytes, ...]:
    """Keys from hex, or typer.BadParameter."""
    try:
        parsed = tuple(bytes.fromhex(key) for key in keys or ())
    except ValueError:
        raise typer.BadParameter("--trust-helper takes hexadecimal") from None
    if any(len(key) != 32 for key in parsed):
        raise typer.BadParameter("--trust-helper takes 32 bytes in hexadecimal")
    return parsed

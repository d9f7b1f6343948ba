"""The options that commands share.

Which source, and how connections are protected; and what their values mean together.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from browser_sim.kinds import SourceKind
from maskedlark.encoding.column_kinds import Binning, ColumnKind
from maskedlark.errors import InvalidTask
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from browser_sim.endpoint import Protection
    from browser_sim.sources import SourceSettings
    from browser_sim.sources.table import TableSettings
    from maskedlark.encoding.encoder import Encoder

_PLANNED = "planned"
_DIGITS = 9
_source = panel("Source")
_protection = panel("Protection")

CsvOption = Annotated[Path | None, _source("csv: a table with a header.", "--csv")]
LabelOption = Annotated[str | None, _source("csv: the label column.", "--label")]
UserOption = Annotated[
    str | None,
    _source(
        "csv: the column that identifies the person, whose browser reports all of the person's rows; it "
        "is no feature."
    ),
]
IgnoreOption = Annotated[list[str] | None, _source("csv: a column to leave out; repeatable.", "--ignore")]
MnistDirOption = Annotated[
    Path | None, _source("mnist: folder with idx files; default: $MASKEDLARK_DATA/mnist.", "--mnist-dir")
]
SeedOption = Annotated[
    int | None,
    option(
        "Make everything reproducible from this seed. Masks are then predictable.",
        "--seed",
        min=0,
        max=(1 << 63) - 1,
    ),
]
JsonOption = Annotated[bool, option("Print one JSON object.", "--json")]


def table_of(
    *,
    label: LabelOption = None,
    label_kind: Annotated[LabelKind, _source("csv: the kind of labels.")] = LabelKind.CLASSES,
    classes: Annotated[
        list[str] | None,
        _source(
            "csv: a class of the label, in order; rows with any other are left out and counted; repeatable.",
            "--class",
            metavar="CLASS",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    date: Annotated[
        list[str] | None,
        _source(
            "csv: a column of dates: weekday, hour and day become features. =dmy or =mdy says whether the "
            "day or the month stands first where slashes part them, else the cells must show it; repeatable.",
            metavar="COLUMN[=dmy|mdy]",
        ),
    ] = None,
    publish: Annotated[
        list[str] | None,
        _source(
            "csv: a column whose words may stand in the public encoder though they look like identifiers; "
            "repeatable.",
            metavar="COLUMN",
        ),
    ] = None,
    binning: Annotated[Binning, _source("csv: how to place the bins of numeric columns.")] = Binning.RANGE,
    bins: Annotated[int, _source("csv: number of bins of a numeric column.", min=2, max=256)] = 256,
    types: Annotated[
        list[str] | None,
        _source(
            "csv: the type of a column, if its cells suggest another one; repeatable.",
            "--type",
            metavar="COLUMN=number|category",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        _source(
            "csv: a column of ids, and how many of its words have a row of their own: the most frequent ones,"
            " or as many as the planned reports and epsilon carry; repeatable.",
            metavar="COLUMN=N|planned",
        ),
    ] = None,
    hashed: Annotated[
        list[str] | None,
        _source(
            "csv: a column of ids without a vocabulary, and how many rows its hash has; repeatable.",
            "--hash",
            metavar="COLUMN=ROWS",
        ),
    ] = None,
    planned_reports: Annotated[
        int | None, _source("csv: how many reports planned vocabularies are trained on.", min=1)
    ] = None,
    planned_epsilon: Annotated[
        float | None, _source("csv: the epsilon that planned vocabularies are trained at.", min=1e-6)
    ] = None,
    value: Annotated[
        list[str] | None,
        _source(
            "csv: the column of a measured value, or COLUMN==WORD, COLUMN!=WORD or COLUMN*100; repeatable.",
            metavar="NAME[=COLUMN]",
        ),
    ] = None,
) -> "Callable[[Path], TableSettings]":
    """Return how a table's columns are read, or raise typer.BadParameter."""

    def table(path: Path) -> "TableSettings":
        from browser_sim.sources.table import TableSettings
        from maskedlark.encoding.dates import split_order
        from maskedlark.encoding.fit import PlannedTraining

        training = None
        if planned_reports is not None and planned_epsilon is not None:
            training = PlannedTraining(reports=planned_reports, epsilon=planned_epsilon)
        return TableSettings(
            path=path,
            label=label,
            label_kind=label_kind,
            classes=tuple(classes or ()),
            ignore=tuple(ignore or ()),
            dates=dict(map(split_order, date or ())),
            publish=tuple(publish or ()),
            binning=binning,
            bins=bins,
            kinds=_column_kinds(types),
            words=_column_words(words, can_plan=training is not None),
            hashed=_column_rows(hashed),
            training=training,
            values=_columns(value),
        )

    return table


@takes(table=table_of)
def source_settings(
    *,
    source: Annotated[SourceKind, _source("The source of the records.")],
    csv: CsvOption = None,
    encoder: Annotated[
        Path | None,
        _source(
            "csv: encoder file from `encode --fit`, which turns cells into bytes; default, for a task given "
            "as a URL: the task's encoder, if it names one.",
        ),
    ] = None,
    table: "Callable[[Path], TableSettings]",
    key: Annotated[
        list[str] | None, _source("csv: the column of a measured key; repeatable.", metavar="NAME[=COLUMN]")
    ] = None,
    gaps_as_zero: Annotated[
        bool,
        _source("csv: a row without a measured number reports 0; default: it is left out.", "--gaps-as-zero"),
    ] = False,
    user: UserOption = None,
    mnist_dir: MnistDirOption = None,
    synthetic_features: Annotated[int, _source("synthetic: number of features.", min=1, max=65_536)] = 8,
    synthetic_rows: Annotated[int, _source("synthetic: number of records.", min=1)] = 10_000,
    truth: Annotated[Path | None, _source("synthetic: write the true model to this file.")] = None,
) -> "SourceSettings":
    """Return the source that the options describe, or raise typer.BadParameter."""
    from browser_sim.sources import SourceSettings

    settings = None
    if source is SourceKind.CSV:
        if csv is None:
            raise typer.BadParameter("source csv needs --csv FILE")
        fitted = None if encoder is None else load_encoder(encoder)
        settings = replace(
            table(csv), encoder=fitted, keys=_columns(key), are_gaps_zero=gaps_as_zero, person=user
        )
    return SourceSettings(
        kind=source,
        table=settings,
        mnist_folder=mnist_dir,
        synthetic_features=synthetic_features,
        synthetic_rows=synthetic_rows,
        truth=truth,
    )


def _columns(typed: list[str] | None) -> dict[str, str]:
    """Parse columns by name, from NAME=COLUMN, or NAME where the column has the same name."""
    return {name: column or name for name, _, column in (one.partition("=") for one in typed or ())}


def _column_kinds(typed: list[str] | None) -> dict[str, ColumnKind]:
    """Parse column kinds from COLUMN=number or COLUMN=category, or raise typer.BadParameter."""
    kinds = {}
    for one in typed or ():
        column, _, kind = one.rpartition("=")
        if not column or kind not in list(ColumnKind):
            raise typer.BadParameter(f"--type is {one!r}: expected COLUMN=number or COLUMN=category")
        kinds[column] = ColumnKind(kind)
    return kinds


def _column_words(typed: list[str] | None, *, can_plan: bool) -> dict[str, int | None]:
    """Parse vocabulary sizes from COLUMN=N or COLUMN=planned, or raise typer.BadParameter."""
    from maskedlark.encoding.encoder import ID_ROWS, MAX_ROWS

    most = MAX_ROWS - ID_ROWS
    found: dict[str, int | None] = {}
    for one in typed or ():
        column, _, count = one.rpartition("=")
        if count == _PLANNED and not can_plan:
            raise typer.BadParameter(
                f"--words is {one!r}: a planned vocabulary needs --planned-reports and --planned-epsilon"
            )
        if not column or (count != _PLANNED and not _is_within(count, 0, most)):
            raise typer.BadParameter(
                f"--words is {one!r}: expected COLUMN=planned or COLUMN=N, N from 0 to {most}"
            )
        found[column] = None if count == _PLANNED else int(count)
    return found


def _column_rows(typed: list[str] | None) -> dict[str, int]:
    """Parse the rows of hashed columns from COLUMN=ROWS, or raise typer.BadParameter."""
    from maskedlark.encoding.encoder import MAX_ROWS

    found = {}
    for one in typed or ():
        column, _, count = one.rpartition("=")
        if not column or not _is_within(count, 2, MAX_ROWS):
            raise typer.BadParameter(f"--hash is {one!r}: expected COLUMN=ROWS, ROWS from 2 to {MAX_ROWS}")
        found[column] = int(count)
    return found


def _is_within(typed: str, least: int, most: int) -> bool:
    """Return whether an option is a whole number of a range."""
    # The length first: Python refuses to read thousands of digits, with an error that says nothing of
    # options.
    return typed.isascii() and typed.isdigit() and len(typed) < _DIGITS and least <= int(typed) <= most


def load_encoder(path: Path) -> "Encoder":
    """Load an encoder's file.

    Raises:
        InvalidSource: the file does not exist, or is not an encoder.
    """
    from browser_sim.source import InvalidSource
    from maskedlark.encoding.encoder import read_encoder

    try:
        # Editors end a file with a line break, which canonical bytes do not have.
        return read_encoder(path.read_bytes().rstrip(b"\n"))
    except OSError as error:
        raise InvalidSource(f"cannot read {path}: {error.strerror}") from None
    except InvalidTask as error:
        raise InvalidSource(f"{path.name}: {error}") from None


def protection(
    *,
    insecure: Annotated[bool, _protection("Allow plaintext; loopback addresses only.", "--insecure")] = False,
    tls_cert: Annotated[Path | None, _protection("PEM: this client's certificate chain, if any.")] = None,
    tls_key: Annotated[Path | None, _protection("PEM: the certificate's private key.")] = None,
    tls_ca: Annotated[
        Path | None,
        _protection("PEM: the authorities that sign peers' certificates.", envvar="BROWSER_SIM_TLS_CA"),
    ] = None,
) -> "Protection":
    """Return how connections are protected; typer.BadParameter if TLS files are missing."""
    from browser_sim.endpoint import Protection
    from maskedlark.rpc.tls_files import TlsFiles
    from maskedlark.rpc.transport import TrustOnly

    given = [path for path in (tls_cert, tls_key, tls_ca) if path is not None]
    if not given:
        return Protection(insecure=insecure)
    if insecure or tls_ca is None or (tls_cert is None) is not (tls_key is None):
        raise typer.BadParameter(
            "the TLS options do not match: give --tls-ca, or all of --tls-cert, --tls-key and "
            "--tls-ca, or none of them; and none with --insecure"
        )
    for path in given:
        if not path.is_file():
            raise typer.BadParameter(f"{path} is not a file: give the path of an existing PEM file")
    if tls_cert is None or tls_key is None:
        return Protection(tls=TrustOnly(trusted_authorities=tls_ca))
    return Protection(tls=TlsFiles(certificate=tls_cert, private_key=tls_key, trusted_authorities=tls_ca))


def parse_trusted_helpers(
    *,
    trust_helper: Annotated[
        list[str] | None,
        _protection("Ed25519 key (hex) of a trusted helper; repeatable. Default: trust any helper."),
    ] = None,
) -> tuple[bytes, ...]:
    """Parse keys from hex, or raise typer.BadParameter."""
    try:
        parsed = tuple(bytes.fromhex(key) for key in trust_helper or ())
    except ValueError:
        raise typer.BadParameter(
            "--trust-helper is not hexadecimal: expected a key of 32 bytes, 64 hexadecimal digits"
        ) from None
    if any(len(key) != 32 for key in parsed):
        raise typer.BadParameter(
            "--trust-helper has the wrong length: expected a key of 32 bytes, 64 hexadecimal digits"
        )
    return parsed

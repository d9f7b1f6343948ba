"""`browser-sim encode`: an encoder fitted to one table, and used for every other."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from browser_sim.commands import reporting_errors
from browser_sim.options import (
    JsonOption,
    load_encoder,
    table_of,
)
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from browser_sim.source import RowCounts, Source
    from browser_sim.sources.table import FittedEncoder, TableSettings


@takes(table=table_of)
@reporting_errors()
def encode_command(
    *,
    fit: Annotated[Path | None, option("Fit an encoder to this table.", "--fit", metavar="CSV")] = None,
    csv: Annotated[Path | None, option("Apply the encoder to this table; writes an .npz.", "--csv")] = None,
    encoder: Annotated[Path | None, option("The encoder to apply to --csv.", "--encoder")] = None,
    out: Annotated[
        Path | None,
        option("The output file: the encoder as JSON, or features and labels as .npz.", "--out", "-o"),
    ] = None,
    table: "Callable[[Path], TableSettings]",
    as_json: JsonOption = False,
) -> None:
    """Fit an encoder to a table (--fit), or apply one to a table (--encoder, --csv).

    Columns of measured values (--value) are secret and are not features. The output for `--csv`, with labels,
    is the input of `adserver job submit --eval-set` and `adserver model evaluate`: for panel data only.
    """
    from browser_sim.source import save_records
    from browser_sim.sources.table import fit_counting, load_table
    from maskedlark.canonical import encode

    if (fit is None) == (csv is None) or (csv is None) is not (encoder is None):
        raise typer.BadParameter("nothing to do: give --fit CSV, or both --encoder FILE and --csv FILE")
    if fit is not None:
        fitted = fit_counting(table(fit))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(encode(fitted.encoder))
        told = _of_encoder(fitted)
    elif csv is not None and encoder is not None:
        source = load_table(replace(table(csv), encoder=load_encoder(encoder)))
        if out is not None:
            save_records(out, source.records, source.label_kind)
        told = _of_table(source)
    typer.echo(json.dumps(told) if as_json else "\n".join(f"{name}: {said}" for name, said in told.items()))


def _of_encoder(fitted: "FittedEncoder") -> dict[str, object]:
    from maskedlark.canonical import encode
    from maskedlark.encoding.encoder import ClassLabel

    encoder = fitted.encoder
    kinds = [column.kind for column in encoder.columns]
    label = encoder.label
    return {
        "digest": encoder.digest.hex(),
        "features": encoder.num_features,
        "numbers": kinds.count("number"),
        "categories": kinds.count("category"),
        "ids": kinds.count("id") + kinds.count("hash"),
        "label": None if label is None else label.name,
        "classes": list(label.classes) if isinstance(label, ClassLabel) else None,
        "bytes": len(encode(encoder)),
        "rows": _of_rows(fitted.rows),
    }


def _of_table(source: "Source") -> dict[str, object]:
    return {
        "rows": len(source.records),
        "features": source.records.features.shape[1],
        "scaling": source.scaling,
        "notes": list(source.notes),
        "left_out": dict(source.rows.left_out) if source.rows else {},
    }


def _of_rows(rows: "RowCounts") -> dict[str, object]:
    used = rows.read - sum(rows.left_out.values())
    return {"read": rows.read, "used": used, "left_out": dict(rows.left_out)}

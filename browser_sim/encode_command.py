"""`browser-sim encode`: an encoder fitted to one table, or to images, and used for every other."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from browser_sim.commands import reporting_errors
from browser_sim.options import (
    JsonOption,
    UserOption,
    load_encoder,
    table_of,
)
from maskedlark.escape import escape
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from browser_sim.source import RowCounts, Source
    from browser_sim.sources.table import TableSettings
    from maskedlark.encoding.encoder import Encoder


@takes(table=table_of)
@reporting_errors()
def _encode_command(
    *,
    fit: Annotated[Path | None, option("Fit an encoder to this table.", "--fit", metavar="CSV")] = None,
    csv: Annotated[Path | None, option("Apply the encoder to this table; writes an .npz.", "--csv")] = None,
    encoder: Annotated[Path | None, option("The encoder to apply to --csv or --images.", "--encoder")] = None,
    images: Annotated[
        Path | None,
        option(
            "An idx file of images: fit an encoder to them, or apply --encoder.", "--images", metavar="IDX"
        ),
    ] = None,
    labels: Annotated[Path | None, option("The idx file of the labels of --images.", metavar="IDX")] = None,
    out: Annotated[
        Path | None,
        option("The output file: the encoder as JSON, or features and labels as .npz.", "--out", "-o"),
    ] = None,
    table: "Callable[[Path], TableSettings]",
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit an encoder to a table (--fit) or images, or apply one (--encoder) to a table (--csv) or images.

    Columns of measured values (--value) are secret and are not features. The output of applying one, with
    labels, is the input of `adserver job submit --eval-set` and `adserver model evaluate`: for panel data
    only.
    """
    from browser_sim.sources.table import check_labelled, fit_counting, load_table

    if images is not None or labels is not None:
        if images is None or labels is None or fit is not None or csv is not None:
            raise typer.BadParameter("give both --images IDX and --labels IDX, without --fit and --csv")
        told = _encode_images(images, labels, encoder, out)
    elif (fit is None) == (csv is None) or (csv is None) is not (encoder is None):
        raise typer.BadParameter(
            "nothing to do: give --fit CSV, both --encoder FILE and --csv FILE, or both --images IDX and "
            "--labels IDX"
        )
    elif fit is not None:
        # Rows whose label is not learned are told here, before browsers leave them out.
        fitted = fit_counting(replace(table(fit), person=user))
        _write(fitted.encoder, out)
        told = _of_encoder(fitted.encoder) | {"rows": _of_rows(fitted.rows), "notes": list(fitted.notes)}
        if (wanted := _predicted(fitted.encoder)) is not None and not as_json:
            told["predicted"] = wanted
    elif csv is not None and encoder is not None:
        reader = load_encoder(encoder)
        # Else rows with a measured value would be read without a label, which the output is of
        check_labelled(reader)
        source = load_table(replace(table(csv), encoder=reader, person=user))
        if out is not None:
            source.records.save(out, source.label_kind)
        told = _of_table(source)
    typer.echo(json.dumps(told) if as_json else "\n".join(_lines(told)))


def _encode_images(images: Path, labels: Path, encoder: Path | None, out: Path | None) -> dict[str, object]:
    from browser_sim.sources.images import fit_images, load_images

    if encoder is None:
        fitted = fit_images(images, labels)
        _write(fitted, out)
        return _of_encoder(fitted)
    source = load_images(images, labels, load_encoder(encoder))
    if out is not None:
        source.records.save(out, source.label_kind)
    return _of_table(source)


def _lines(told: Mapping[str, object]) -> Iterator[str]:
    """Yield what was found, a line for each name; nothing for what there is none of."""
    for name, said in told.items():
        shown = name.replace("_", " ")
        if isinstance(said, Mapping):
            yield from (f"{shown}, {line}" for line in _lines(said))
        elif isinstance(said, list):
            yield f"{shown}: {'; '.join(map(escape, map(str, said)))}"
        elif said is not None:
            yield f"{shown}: {escape(str(said))}"


def _write(encoder: "Encoder", out: Path | None) -> None:
    from maskedlark.canonical import encode

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(encode(encoder))


def _of_encoder(encoder: "Encoder") -> dict[str, object]:
    from maskedlark.canonical import encode
    from maskedlark.encoding.encoder import ClassLabel

    kinds = [column.kind for column in encoder.columns]
    label = encoder.label
    return {
        "digest": encoder.digest.hex(),
        "features": encoder.num_features,
        "numbers": kinds.count("number"),
        "categories": kinds.count("category"),
        "ids": kinds.count("id") + kinds.count("hash"),
        "images": kinds.count("image"),
        "label": None if label is None else label.name,
        "classes": list(label.classes) if isinstance(label, ClassLabel) else None,
        "bytes": len(encode(encoder)),
    }


def _predicted(encoder: "Encoder") -> str | None:
    """Say of which class a model of two gives the chance, and how to choose the other; None for more."""
    from maskedlark.encoding.encoder import ClassLabel

    label = encoder.label
    if not isinstance(label, ClassLabel) or len(label.classes) != 2:
        return None
    first, second = label.classes
    return f"the chance of {second!r}; of {first!r} with --class {quote(second)} --class {quote(first)}"


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

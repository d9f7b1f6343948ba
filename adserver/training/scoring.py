"""A trained model's predictions for the rows of a table that nobody reports.

    scored = score_table(encoded, find_encoder(encoded, given), table)
    scored.columns                     # ("chance of yes",)
    scored.rows[0], scored.why[1]      # (0.231,), "column 'pages': it holds a word, ..."

Each row has a prediction or the reason why it has none.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from adserver.training import pipeline
from adserver.training.inference import predict, run_graph
from adserver.training.logit_scaling import chances_of
from adserver.training.pipeline import (
    BYTES_INPUT,
    ENCODER_IS,
    ENCODER_ITSELF,
    INPUT_IS,
    LOSS_IS,
    SCALED,
    feed_of_columns,
    notes_of,
    width_of_outputs,
)
from maskedlark.encoding import dates
from maskedlark.encoding.cells import Cells, number
from maskedlark.encoding.close_names import find_close, fold, list_unknown
from maskedlark.encoding.encoder import (
    TOP,
    CategoryColumn,
    ClassLabel,
    Encoder,
    NumberColumn,
    read_encoder,
)
from maskedlark.encoding.table import Table
from maskedlark.encoding.written_numbers import find_other_unit, names_unit
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss
from maskedlark.terminal.plural import plural

NOT_SCORED: Final = "not scored because"
_PREDICTION: Final = "prediction"
# Of fewer rows most may lack a column that often has gaps
_FEWEST_ROWS: Final = 10


@frozen
class _UnknownWords:
    """Words of a column that the encoder does not name.

    Attributes:
        column: The column.
        rows: How many scored rows have one of them.
        words: How many they are.
        example: The most frequent one.
        known: The words that the encoder names.
    """

    column: str
    rows: int
    words: int
    example: str
    known: tuple[str, ...]

    def describe(self) -> str:
        """Return what the encoder does not name, and what the most frequent such word was meant to be."""
        close = _find_close_word(self.example, () if dates.part_of(self.column) else self.known)
        meant = "" if close is None else f" (did you mean {close!r}?)"
        which = (
            f"{self.example!r}"
            if self.words == 1
            else f"{self.words:,} of the words there, most often {self.example!r}"
        )
        return f"encoder does not name {which}{meant}"


@frozen
class _Gaps:
    """Empty cells of a column, more than there should be.

    Attributes:
        column: The column; for the parts of a date, the date's.
        rows: How many scored rows have none of it.
        of: How many rows are scored.
        are_new: Whether no row that the encoder was fitted to has one; False if that is not known.
    """

    column: str
    rows: int
    of: int
    are_new: bool


@frozen
class _ScoredTable:
    """Predictions row by row.

    Attributes:
        columns: What each number of a row is.
        rows: For each row of the table its numbers, or None where it has none.
        why: For each row why it has none, or nothing.
        unknown: Columns with words that the encoder does not name, which are scored as one word, `other`.
        gaps: Columns with gaps where the encoder was fitted to none, or in most of `_FEWEST_ROWS` or more.
        units: The currency or % of each column that is read as amounts.
        have_commas: Whether amounts have decimal commas.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[float] | None]
    why: Sequence[str]
    unknown: tuple[_UnknownWords, ...] = ()
    gaps: tuple[_Gaps, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    have_commas: bool = False

    def count_left_out(self) -> dict[str, int]:
        """Count the rows without a prediction, by reason."""
        return dict(Counter(filter(None, self.why)))

    def remarks(self) -> list[str]:
        """Return a line for each reason that left rows out, and each column to look at."""
        lines = [
            f"{plural(rows, 'row is', 'rows are')} not scored: {reason}"
            for reason, rows in self.count_left_out().items()
        ]
        lines += [
            f"{plural(one.rows, 'row is', 'rows are')} scored as `other` in column {one.column!r}: the "
            f"{one.describe()}"
            for one in self.unknown
        ]
        for what, are_new in (
            ("empty where the encoder was fitted to no gap", True),
            ("mostly empty", False),
        ):
            named = [
                f"{one.column!r} ({one.rows} of {plural(one.of, 'row')})"
                for one in self.gaps
                if one.are_new is are_new
            ]
            if named:
                columns = "column" if len(named) == 1 else "columns"
                lines.append(
                    f"{what}: {columns} {', '.join(named)}; check that the cells were read as they were meant"
                )
        return [*lines, *self._describe_units()]

    def _describe_units(self) -> Iterator[str]:
        """Yield what is to be checked of units: nothing of one that the column's name has."""
        unsaid = dict[str, str]()
        for column, unit in self.units.items():
            if other := find_other_unit(column, unit):
                yield (
                    f"column {column!r} is named in {other}, and its amounts are in {unit}, read as if they "
                    f"were in {other}: convert them"
                )
            # A share has no other unit
            elif not names_unit(column) and unit != "%":
                unsaid[column] = unit
        if unsaid:
            told = " and ".join(f"{column!r} is read as amounts in {unit}" for column, unit in unsaid.items())
            yield (
                f"column {told}; the encoder does not know the unit that it was fitted on: check that it is "
                "the same"
            )


def find_encoder(encoded_model: bytes, given: Encoder | None) -> Encoder:
    """Return the encoder that makes a model's features: as given, or the one in a file over raw columns.

    Raises:
        InvalidTask: neither is there, or the model was trained with another encoder.
    """
    notes = notes_of(encoded_model)
    if given is None and ENCODER_ITSELF in notes:
        given = read_encoder(notes[ENCODER_ITSELF].encode())
    if given is None:
        raise InvalidTask(
            "the model's file holds no encoder, so nothing says how rows become its features: give the "
            "encoder file of its task, or export the model over raw columns (--with-encoder, takes='columns')"
        )
    if notes.get(ENCODER_IS, given.digest.hex()) != given.digest.hex():
        raise InvalidTask(
            f"the model was trained with encoder {notes[ENCODER_IS][:12]}, but this one is "
            f"{given.digest.hex()[:12]}: give the encoder file of its task"
        )
    return given


def check_columns(encoder: Encoder, name: str, columns: Collection[str]) -> None:
    """Refuse a table that lacks columns that an encoder reads.

    Args:
        encoder: The encoder.
        name: The table's.
        columns: The names of all columns of the table.

    Raises:
        InvalidTask: it lacks some; the message has all of them, with the close names that it has.
    """
    lacking = dict[str, None]()
    for one in encoder.columns:
        # A table has dates in place of their parts, which have names that it never had
        if {one.name, of := dates.part_of(one.name)}.isdisjoint(columns):
            lacking[of or one.name] = None
    if lacking:
        what = "a column that is" if len(lacking) == 1 else "columns that are"
        raise InvalidTask(f"the encoder reads {what} not there: {name} has {list_unknown(lacking, columns)}")


def score_table(
    encoded_model: bytes, encoder: Encoder, table: Table, loss: Loss | None = None
) -> _ScoredTable:
    """Predict each row of a table.

    A model of two classes gives the chance of class 1, one of more the chance of each, one of numbers the
    number; a model whose loss is not known gives its outputs.

    Args:
        encoded_model: An exported ONNX file, whatever it takes.
        encoder: The one that it was trained with, as of `find_encoder`.
        table: It needs the encoder's columns only.
        loss: What the model was trained with; None: what the file says, if it does.

    Raises:
        InvalidTask: the file takes another input than exports do, or the table lacks a column.
        InvalidModel: the parser refuses the model, it has other outputs than the loss has, or onnxruntime
            cannot run it.
    """
    check_columns(encoder, table.name, table.columns)
    notes = notes_of(encoded_model)
    if loss is None and LOSS_IS in notes:
        loss = Loss.named(notes[LOSS_IS])
    why = [table.short.get(row, "") for row in range(len(table))]
    wanted = [column.name for column in encoder.columns]
    amounts = {name: one for name, one in table.amounts_read_by(encoder).items() if name in wanted}
    cells: dict[str, Cells] = {**table.columns, **{name: one.cells for name, one in amounts.items()}}
    for of in dict.fromkeys(dates.part_of(name) for name in wanted if name not in cells):
        if of is None or of not in cells:
            continue
        unread = dates.wrong_dates(cells[of], encoder.date_orders.get(of))
        for row, cell in enumerate(cells[of]):
            if cell is not None and cell in unread:
                why[row] = why[row] or f"column {of!r}: {unread[cell]}"
        # A date that cannot be read costs its own row the prediction, and no other row.
        cells[of] = [None if cell in unread else cell for cell in cells[of]]
    cells |= dates.with_parts(cells, wanted, encoder.date_orders)
    for wrong in encoder.wrong_cells(cells):
        read = amounts.get(wrong.column)
        reason = read.explain(wrong.row, wrong.why) if read else wrong.why
        why[wrong.row] = why[wrong.row] or f"column {wrong.column!r}: {reason}"
    places = [row for row, reason in enumerate(why) if not reason]
    readable = {name: [cells[name][place] for place in places] for name in wanted if name in cells}
    outputs = _run(encoded_model, notes.get(INPUT_IS, SCALED), encoder, readable).astype(np.float64)
    columns, numbers = _predictions(outputs, loss, encoder)
    rows: list[Sequence[float] | None] = [None] * len(table)
    for place, found in zip(places, numbers.tolist(), strict=True):
        rows[place] = found
    return _ScoredTable(
        columns=columns,
        rows=rows,
        why=why,
        unknown=tuple(_unknown_words(encoder, readable)),
        gaps=tuple(_gaps(encoder, readable, table.columns, len(places))),
        units={name: one.unit for name, one in amounts.items() if one.unit},
        have_commas=any(one.have_commas for one in amounts.values()),
    )


def _unknown_words(encoder: Encoder, cells: Mapping[str, Cells]) -> Iterator[_UnknownWords]:
    for column in encoder.columns:
        if known := set(column.words):
            counts = Counter(cell for cell in cells[column.name] if cell is not None and cell not in known)
            if counts:
                yield _UnknownWords(
                    column=column.name,
                    rows=counts.total(),
                    words=len(counts),
                    example=counts.most_common(1)[0][0],
                    known=column.words,
                )


def _find_close_word(word: str, known: Collection[str]) -> str | None:
    """Return the known word that a word was probably meant to be, by its spelling; None if none is close."""
    if (value := number(word)) is not None:
        return next((one for one in known if number(one) == value), None)
    folded = fold(word)
    alike = next((one for one in known if fold(one) == folded), None)
    # Of codes such as `site 12` another one is always near, and of very many words a search is slow
    is_code = any(one.isdecimal() for one in word)
    return alike if alike or is_code or len(known) > TOP else find_close(word, known)


def _gaps(
    encoder: Encoder, cells: Mapping[str, Cells], columns: Collection[str], rows: int
) -> Iterator[_Gaps]:
    """Yield the columns with more gaps than there should be, as far as an encoder tells.

    Args:
        encoder: What reads the columns.
        cells: Its columns, of the rows that are scored.
        columns: Those of the table, which may have dates in place of their parts.
        rows: How many rows are scored.
    """
    told = set[tuple[str, int]]()
    for column in encoder.columns:
        gaps = sum(cell is None for cell in cells[column.name])
        # A column that had gaps keeps its first byte for them; ids have a row for gaps anyway
        are_new = isinstance(column, NumberColumn | CategoryColumn) and not column.first
        of = None if column.name in columns else dates.part_of(column.name)
        name = of if of is not None and not column.name.endswith(dates.HOUR) else column.name
        # A date without a time has no hour, and one that is empty has no part
        if not gaps or (of or name, gaps) in told:
            continue
        if are_new or (rows >= _FEWEST_ROWS and gaps > rows / 2):
            told.add((of or name, gaps))
            yield _Gaps(column=name, rows=gaps, of=rows, are_new=are_new)


def _run(
    encoded_model: bytes, takes: str, encoder: Encoder, cells: Mapping[str, Cells]
) -> NDArray[np.float32]:
    """Return a model's outputs (rows, outputs), by the input that its file says it takes."""
    match takes:
        case pipeline.SCALED:
            return predict(encoded_model, encoder.features(cells))
        case pipeline.BYTES:
            feed: Mapping[str, NDArray[Any]] = {BYTES_INPUT: encoder.features(cells)}
        case pipeline.COLUMNS:
            feed = feed_of_columns(encoder, cells)
        case _:
            raise InvalidTask(f"the model takes {takes}: give a file that `adserver model export` writes")
    rows = len(next(iter(feed.values())))
    return run_graph(
        encoded_model,
        lambda some: {name: column[some] for name, column in feed.items()},
        rows,
        width=width_of_outputs(encoded_model),
    )


def _predictions(
    outputs: NDArray[np.float64], loss: Loss | None, encoder: Encoder
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return what each number is, and the numbers (rows, columns) of outputs (rows, outputs)."""
    label, width = encoder.label, outputs.shape[1]
    if loss is not None and (loss is Loss.CROSS_ENTROPY) is not (width > 1):
        raise InvalidModel(
            ModelReason.WRONG_LOSS,
            f"{loss} needs {'an output for each class' if loss is Loss.CROSS_ENTROPY else 'one output'}: the "
            f"model has {width}; give the loss that it was trained with",
        )

    def chance_of(code: int) -> str:
        name = label.classes[code] if isinstance(label, ClassLabel) and code < len(label.classes) else code
        return f"chance of {name}"

    match loss:
        case Loss.BINARY_CROSS_ENTROPY:
            return (chance_of(1),), outputs
        case Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return (chance_of(1),), chances_of(outputs)
        case Loss.CROSS_ENTROPY:
            # The shares of shifted outputs are the same, and no exponential overflows.
            shares = np.exp(outputs - outputs.max(1, keepdims=True))
            return tuple(map(chance_of, range(width))), shares / shares.sum(1, keepdims=True)
        case Loss.MSE:
            return (_PREDICTION,), outputs
        case Loss.POISSON:
            return (_PREDICTION,), np.exp(outputs)
        case None:
            return tuple(f"output {place}" for place in range(width)), outputs
        case _:
            assert_never(loss)

"""A model is compared with the encoder's columns.

Tables that are shorter are refused before anything is spent; columns that are read as what they are not are
warned of.
"""

from collections.abc import Callable

import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor, cat, nn

from adserver.training.column_uses import check_codes, check_lookups, warn_of_columns
from adserver.training.inference import open_session
from adserver.training.model_file import prepare_model
from maskedlark.encoding.encoder import (
    CategoryColumn,
    Encoder,
    HashColumn,
    IdColumn,
    ImageColumn,
    NumberColumn,
)
from maskedlark.errors import ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.table_network import table_network
from tests.refusals import refused
from tests.torch_models import export

IDS = IdColumn(name="item", words=tuple(f"item {index}" for index in range(300)))
ENCODER = Encoder(
    columns=(
        CategoryColumn(name="device", first=1, missing=0, categories=("phone", "desktop")),
        IDS,
        NumberColumn(name="pages", first=0, missing=0, edges=(1.0, 2.0)),
        HashColumn(name="user", rows=70_000),
    )
)


def check_vocabulary(encoded: bytes, encoder: Encoder) -> None:
    """Prepare a model for a job whose task has the encoder."""
    prepare_model(encoded, num_features=encoder.num_features, encoder=encoder)


class Tables(nn.Module):
    """A table for each column of `ENCODER`."""

    def __init__(self, *rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(count, 2) for count in rows])
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        codes = (x * 256).long()
        ids = (
            codes[:, 0],
            codes[:, 1] + 256 * codes[:, 2],
            codes[:, 3],
            codes[:, 4] + 256 * codes[:, 5] + 65536 * codes[:, 6],
        )
        rows = [table(at) for table, at in zip(self.tables, ids, strict=True)]
        found: Tensor = self.last(cat(rows, 1))
        return found


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize(
    ("rows", "needed"),
    [
        ((4, 302, 256, 70_000), None),
        ((9, 400, 256, 70_001), None),
        ((3, 302, 256, 70_000), 4),
        ((4, 301, 256, 70_000), 302),
        ((4, 302, 255, 70_000), 256),
        ((4, 302, 256, 65_536), 70_000),
    ],
)
def test_a_table_needs_a_row_for_each_that_its_column_names(
    rows: tuple[int, ...], needed: int | None, dynamo: bool
) -> None:
    encoded = export(Tables(*rows).eval(), ENCODER.num_features, 2, dynamo=dynamo)
    if needed is None:
        check_vocabulary(encoded, ENCODER)
    else:
        with refused(ModelReason.WRONG_SHAPE, f"give the table {needed} rows"):
            check_vocabulary(encoded, ENCODER)


def test_the_network_over_the_encoder_fits_it_and_one_without_tables_fits_any() -> None:
    check_vocabulary(table_network(ENCODER, hidden=(4,), outputs=1, seed=1), ENCODER)
    pictured = Encoder(columns=(ImageColumn(name="shown", height=8, width=8), *ENCODER.columns))
    check_vocabulary(table_network(pictured, hidden=(), outputs=1, seed=1), pictured)
    check_vocabulary(dense_network([ENCODER.num_features, 1], "relu", seed=1), ENCODER)
    other = Encoder(columns=(*ENCODER.columns[:3], HashColumn(name="user", rows=70_001)))
    with refused(ModelReason.WRONG_SHAPE, "70000 rows, but column 'user' names rows up to 70000"):
        check_vocabulary(table_network(ENCODER, hidden=(4,), outputs=1, seed=1), other)


WORDS = ("phone", "desktop", "watch")
TABLE = Encoder(
    columns=(
        NumberColumn(name="pages", first=0, missing=0, edges=(1.0, 2.0)),
        CategoryColumn(name="device", first=1, missing=0, categories=WORDS),
        IDS,
        NumberColumn(name="age", first=0, missing=0, edges=tuple(map(float, range(50)))),
        CategoryColumn(name="is new", first=0, missing=2, categories=("no", "yes")),
    )
)
NUMBERS, WORD = (0, 4, 5), 1


class Mixed(nn.Module):
    """Words in tables, the rest as numbers: features by their places."""

    def __init__(
        self, words: tuple[int, ...] = (), numbers: tuple[int, ...] = (), *, item: bool = True
    ) -> None:
        super().__init__()
        self.places, self.numbers, self.has_item = list(words), list(numbers), item
        self.words = nn.ModuleList([nn.Embedding(256, 2) for _ in words])
        self.items = nn.Embedding(302, 2)
        self.last = nn.Linear(2 * len(words) + 2 * item + len(numbers), 1)
        # Weights of 0 hide nothing: what a model reads is no question of what it has learned
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        codes = (x * 256).long()
        parts = [table(codes[:, at]) for table, at in zip(self.words, self.places, strict=True)]
        parts += [self.items(codes[:, 2] + 256 * codes[:, 3])] if self.has_item else []
        parts += [x[:, self.numbers]] if self.numbers else []
        found: Tensor = self.last(cat(parts, 1))
        return found


def warnings_of(module: nn.Module, *, dynamo: bool = False) -> tuple[str, ...]:
    encoded = export(module.eval(), TABLE.num_features, 1, dynamo=dynamo)
    file = prepare_model(encoded, num_features=TABLE.num_features, encoder=TABLE).file
    return warn_of_columns(file, TABLE)


@pytest.mark.parametrize(
    ("places", "rows", "told"),
    [
        ((WORD,), 4, "column 'device' names rows up to 4: if that is the column you mean, give the table 5"),
        ((0,), 2, "column 'pages' names rows up to 255: numbers stand there and no words: look up another"),
    ],
)
def test_a_table_that_is_too_short_is_told_which_column_enters_it(
    places: tuple[int, ...], rows: int, told: str
) -> None:
    module = Mixed(places, NUMBERS)
    module.words[0] = nn.Embedding(rows, 2)
    with refused(ModelReason.WRONG_SHAPE, told):
        warnings_of(module)


def test_lookups_of_numbers_and_of_parts_of_ids_are_refused_and_words_as_numbers_are_not() -> None:
    def file_of(module: nn.Module) -> bytes:
        return export(module.eval(), TABLE.num_features, 1, dynamo=False)

    for module, told in (
        (Mixed((0,), (1, 4, 5)), r"feature 0 \(pages\) only as rows"),
        (Mixed((WORD, 2, 3), NUMBERS, item=False), "byte 1 of the id 'item' apart"),
    ):
        with refused(ModelReason.WRONG_SHAPE, told):
            check_lookups(file_of(module), TABLE)
    check_lookups(file_of(Mixed((WORD,), NUMBERS)), TABLE)
    check_lookups(file_of(nn.Linear(6, 1)), TABLE)


class Unscaled(Mixed):
    """`Mixed` without `* 256` before some of its tables."""

    def forward(self, x: Tensor) -> Tensor:
        codes, above = x.long(), (x * 256).long()
        parts = [self.words[0](codes[:, WORD]), self.words[1](above[:, 5])]
        parts += [self.items(above[:, 2] + 256 * above[:, 3])]
        found: Tensor = self.last(cat([*parts, x[:, self.numbers]], 1))
        return found


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_table_of_which_every_record_reads_row_0_is_refused(dynamo: bool) -> None:
    told = (
        r"the table 'words.0.weight' reads row 0 for every record, as feature 1 \(device\) over 256 is below "
        r"1: write \(x \* 256\).long\(\)"
    )
    file = export(Unscaled((WORD, 5), NUMBERS).eval(), TABLE.num_features, 1, dynamo=dynamo)
    with refused(ModelReason.WRONG_SHAPE, told):
        check_lookups(prepare_model(file, num_features=TABLE.num_features, encoder=TABLE).file, TABLE)


class AllUnscaled(Mixed):
    """`Mixed` without `* 256` before all of its tables."""

    def forward(self, x: Tensor) -> Tensor:
        codes = x.long()
        parts = [self.words[0](codes[:, WORD]), self.words[1](codes[:, 5]), self.items(codes[:, 2])]
        found: Tensor = self.last(cat([*parts, x[:, self.numbers]], 1))
        return found


def test_tables_of_which_every_record_reads_one_row_are_one_line() -> None:
    told = (
        r"the tables 'words.0.weight', 'words.1.weight', 'items.weight' read one row each for every record, "
        r"as features 1 \(device\), 2 \(item\), 5 \(is new\) over 256 are below 1: write \(x \* 256\)"
    )
    file = export(AllUnscaled((WORD, 5), NUMBERS).eval(), TABLE.num_features, 1, dynamo=True)
    with refused(ModelReason.WRONG_SHAPE, told):
        check_lookups(prepare_model(file, num_features=TABLE.num_features, encoder=TABLE).file, TABLE)


class Placed(nn.Module):
    """A table of positions, which no feature enters, before a sum over them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(1, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x + self.table(torch.zeros_like(x[:, 0]).long()))
        return found


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_row_that_no_feature_chooses_is_no_forgotten_scale(dynamo: bool) -> None:
    assert not any("every record" in line for line in warnings_of(Placed(), dynamo=dynamo))


@pytest.mark.parametrize("dynamo", [False, True])
def test_words_in_tables_and_numbers_as_numbers_are_not_warned_of(dynamo: bool) -> None:
    assert not warnings_of(Mixed((WORD,), NUMBERS), dynamo=dynamo)


def test_a_network_of_tables_alone_is_not_warned_of() -> None:
    assert not warnings_of(Mixed((WORD, 5)))


def test_many_tables_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[bytes]()

    def open_counted(encoded: bytes) -> InferenceSession:
        opened.append(encoded)
        return open_session(encoded)

    monkeypatch.setattr("adserver.training.column_uses.open_session", open_counted)
    # One of rows and one of numbers; one more where tables seem to be entered by one number
    for module, sessions in (
        (Mixed((WORD, 5), NUMBERS), 2),
        (Mixed((WORD,) * 9, NUMBERS), 2),
        (Unscaled((WORD, 5), NUMBERS), 3),
    ):
        opened.clear()
        warn_of_columns(export(module.eval(), TABLE.num_features, 1, dynamo=False), TABLE)
        assert len(opened) == sessions


@pytest.mark.parametrize("dynamo", [False, True])
def test_wrong_places_are_warned_of_with_both_columns(dynamo: bool) -> None:
    """`x[:, :1]` for the word, where the encoder has the number first."""
    of_numbers, of_words = warnings_of(Mixed((0,), (1, 4, 5)), dynamo=dynamo)
    assert of_numbers == (
        "the model reads feature 0 (pages) only as rows of a table, but the encoder has numbers there; words "
        "are at 1 (device), 2 (item), 3 (item), 5 (is new)"
    )
    assert "the codes of words at feature 1 (device) as numbers" in of_words


def test_a_dense_network_is_told_which_words_it_reads_as_numbers() -> None:
    [line] = warnings_of(nn.Linear(6, 1))
    assert "at features 1 (device), 2 (item) as numbers" in line
    assert not warn_of_columns(dense_network([1, 2, 1], "relu", seed=1), Encoder(columns=TABLE.columns[:1]))


def test_an_id_whose_bytes_are_looked_up_apart_is_warned_of() -> None:
    [line] = warnings_of(Mixed((WORD, 2, 3), NUMBERS, item=False))
    assert line.startswith("the model looks up byte 1 of the id 'item' apart from its byte 0")


class OneHot(nn.Module):
    """The word's code as one of five inputs that are 1 or 0."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        code = x[:, WORD : WORD + 1] * 256
        hot = [torch.relu(1 - (torch.relu(code - at) + torch.relu(at - code))) for at in range(5)]
        found: Tensor = self.last(cat(hot, 1))
        return found


def test_a_code_that_becomes_one_hot_is_no_number() -> None:
    assert not warnings_of(OneHot())


def test_a_number_that_is_read_as_such_may_choose_rows_too() -> None:
    assert not warnings_of(Mixed((WORD, 0), NUMBERS))


@pytest.mark.parametrize("are_numbers_in_tables", [False, True])
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_the_network_over_an_encoder_is_not_warned_of(
    are_numbers_in_tables: bool, hidden: tuple[int, ...]
) -> None:
    for encoder in (ENCODER, TABLE, Encoder(columns=(IDS, ImageColumn(name="photo", height=16, width=16)))):
        encoded = table_network(
            encoder, hidden=hidden, outputs=1, seed=1, are_numbers_in_tables=are_numbers_in_tables
        )
        file = prepare_model(encoded, num_features=encoder.num_features, encoder=encoder).file
        assert not warn_of_columns(file, encoder)


def test_a_graph_that_onnxruntime_cannot_run_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> None:
        raise ValueError("a node of another opset")

    file = export(nn.Linear(6, 1), TABLE.num_features, 1, dynamo=False)
    monkeypatch.setattr("adserver.training.column_uses.open_session", fail)
    assert warn_of_columns(file, TABLE) == ()


class Codes(nn.Module):
    """Rows of a table by a feature times a number."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self._factor = factor
        self.table = nn.Embedding(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table((x[:, 0] * self._factor).long())
        return found


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("factor", [255, 256, 16])
def test_codes_by_features_times_255_are_refused_and_cells_of_another_width_are_not(
    factor: int, *, dynamo: bool
) -> None:
    file = export(Codes(factor), 6, 1, dynamo=dynamo)
    model = prepare_model(file, num_features=6, encoder=None).parsed
    if factor == 255:
        with refused(ModelReason.WRONG_SHAPE, "every code but 0 would be 1 too small; write"):
            check_codes(model)
    else:
        check_codes(model)


class Scaled(nn.Module):
    """Two layers above numbers that are computed of the features first."""

    def __init__(self, begin: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.begin, self.layers = begin, nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(self.begin(x))
        return found


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize(
    ("begin", "is_large"),
    [
        (lambda x: x * 256, True),
        (lambda x: x / 0.00390625 - 128, True),
        (lambda x: x, False),
        (lambda x: (x * 256 - 128) / 64, False),
        (lambda x: cat([x[:, :5] * 256, x[:, 5:]], 1), False),
    ],
    ids=["times 256", "over 1/256", "as they are", "standardised", "some alone"],
)
def test_numbers_that_are_all_as_large_as_bytes_are_warned_of(
    begin: Callable[[Tensor], Tensor], *, is_large: bool, dynamo: bool
) -> None:
    file = export(Scaled(begin).eval(), TABLE.num_features, 1, dynamo=dynamo)
    found = [line for line in warn_of_columns(file, TABLE) if "numbers of up to 255" in line]
    assert len(found) == is_large
    if is_large:
        assert found[0].endswith("which tables look up; give other layers x")

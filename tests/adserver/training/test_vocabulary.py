"""A model whose tables are shorter than the encoder's columns is refused before anything is spent."""

import pytest
from torch import Tensor, cat, nn

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
        return self.last(cat(rows, 1))  # type: ignore[no-any-return]


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
    with refused(ModelReason.WRONG_SHAPE, "70000 rows, but the encoder's columns name rows up to 70000"):
        check_vocabulary(table_network(ENCODER, hidden=(4,), outputs=1, seed=1), other)

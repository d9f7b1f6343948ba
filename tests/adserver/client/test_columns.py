"""Where a model finds a table's columns among features."""

import numpy as np
import pytest

from adserver import columns_of
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask

CELLS: dict[str, list[str | None]] = {
    "age": ["31", "17", "52", "40"],
    "colour": ["red", None, "blue", "red"],
    "item": [f"item {row}" for row in (1, 2, 3, 1)],
    "page": ["a", "b", "c", None],
}


def encoder() -> Encoder:
    return fit(CELLS, FitSettings(words={"item": None}, hashed={"page": 70_000}))


def test_codes_at_a_columns_places_are_below_its_rows_and_tell_its_words_apart() -> None:
    age, colour, item, page = columns_of(encoder())
    assert (age.name, age.places, age.rows) == ("age", (0,), 0)
    assert (colour.places, item.places, page.places) == ((1,), (2,), (3, 4, 5))
    features = encoder().features(CELLS)
    for column in (colour, item, page):
        codes = sum(
            features[:, place].astype(np.int64) << 8 * byte for byte, place in enumerate(column.places)
        )
        assert np.min(codes) >= 0
        assert np.max(codes) < column.rows
        assert len(set(np.atleast_1d(codes).tolist())) == len(set(CELLS[column.name]))
    assert sum(len(column.places) for column in columns_of(encoder())) == encoder().num_features


def test_what_is_no_encoder_is_refused() -> None:
    with pytest.raises(InvalidTask, match="cannot read the encoder"):
        columns_of("nowhere.json")

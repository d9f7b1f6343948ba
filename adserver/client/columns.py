"""Where a model finds each column of a table among a report's features.

    from adserver import columns_of

    columns = columns_of("encoder.json")
    tables = [torch.nn.Embedding(column.rows, 8) for column in columns if column.rows]

No ad server is asked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adserver.client.tasks import read_encoder_of
from maskedlark.encoding.encoder import Encoder, ImageColumn, NumberColumn
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen


@frozen
class FeatureColumn:
    """One column of a table, as a model reads it.

    Attributes:
        name: The column's name.
        places: Its features, from 0: one, of ids up to three, whose lowest byte is first, of images many.
        rows: How many rows a table for its words needs; 0 for numbers and images, whose features are levels.
    """

    name: str
    places: tuple[int, ...]
    rows: int


def columns_of(encoder: Encoder | Mapping[str, Any] | str | Path) -> list[FeatureColumn]:
    """Return the columns of an encoder, in the order of their features.

    Features are bytes over 256. A column of words is looked up in a table of `rows` rows by its code, the sum
    of `(x[:, place] * 256).long() * 256**byte` over its places.

    Args:
        encoder: An encoder, its file, or the values of one.

    Raises:
        InvalidTask: it is none.
    """
    found = read_encoder_of(encoder)
    if found is None:
        raise InvalidTask("the encoder is None: expected one, its file, or the values of one")
    columns, start = list[FeatureColumn](), 0
    for column in found.columns:
        places = tuple(range(start, start + column.num_bytes))
        rows = 0 if isinstance(column, NumberColumn | ImageColumn) else column.rows
        columns.append(FeatureColumn(name=column.name, places=places, rows=rows))
        start += column.num_bytes
    return columns

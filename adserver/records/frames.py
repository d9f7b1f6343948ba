"""Results as tables of other libraries: pandas frames, and Arrow streams that pandas, polars and duckdb read.

pandas and pyarrow are extras, so they are imported where a result is converted.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from maskedlark.errors import InvalidTask

if TYPE_CHECKING:
    import pandas as pd

ColumnTypes: TypeAlias = Mapping[str, type[int] | type[float] | type[str] | type[bool]]
"""What each column holds, by its name: a result without rows has columns too."""


def frame(rows: Iterable[Mapping[str, Any]], columns: ColumnTypes, caption: str = "") -> "pd.DataFrame":
    """Build a data frame with a row for each mapping and these columns, and a caption in its `attrs`.

    Raises:
        InvalidTask: pandas is not installed.
    """
    try:
        import pandas as pd  # an extra
    except ImportError:
        raise InvalidTask("to_pandas needs pandas: pip install 'masked-lark[notebook]'") from None
    built = pd.DataFrame(list(rows), columns=list(columns))
    if caption:
        built.attrs["caption"] = caption
    return built


def arrow_stream(
    rows: Iterable[Mapping[str, Any]], columns: ColumnTypes, requested_schema: object | None
) -> object:
    """Return the capsule of `__arrow_c_stream__`: a row for each mapping and a column for each name.

    Args:
        rows: The mappings, with a value or None for each column.
        columns: Their names and types. They do not follow from the rows: duckdb takes no table without
            columns, and a column without a value yet would have no type.
        requested_schema: A capsule of the Arrow schema that the reader prefers, or None.

    Raises:
        InvalidTask: pyarrow is not installed.

    Source: the Arrow PyCapsule interface.
    """
    try:
        import pyarrow as pa  # an extra
    except ImportError:
        raise InvalidTask("Arrow streams need pyarrow: pip install 'masked-lark[parquet]'") from None
    types = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    return table.__arrow_c_stream__(requested_schema)

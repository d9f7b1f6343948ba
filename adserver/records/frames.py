"""Results as tables of other libraries: pandas frames, and Arrow streams that pandas, polars and duckdb read.

pandas and pyarrow are extras, so they are imported where a result is converted.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from maskedlark.errors import InvalidTask

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Build a data frame with a row for each mapping and a column for each name.

    Raises:
        InvalidTask: pandas is not installed.
    """
    try:
        import pandas as pd  # an extra
    except ImportError:
        raise InvalidTask("to_pandas needs pandas: pip install 'masked-lark[notebook]'") from None
    return pd.DataFrame(list(rows))


def arrow_stream(rows: Iterable[Mapping[str, Any]], requested_schema: object | None) -> object:
    """Return the capsule of `__arrow_c_stream__`: a row for each mapping and a column for each name.

    Args:
        rows: The mappings, all of the same names.
        requested_schema: A capsule of the Arrow schema that the reader prefers, or None.

    Raises:
        InvalidTask: pyarrow is not installed.

    Source: the Arrow PyCapsule interface.
    """
    try:
        import pyarrow as pa  # an extra
    except ImportError:
        raise InvalidTask("Arrow streams need pyarrow: pip install 'masked-lark[parquet]'") from None
    return pa.Table.from_pylist([dict(row) for row in rows]).__arrow_c_stream__(requested_schema)

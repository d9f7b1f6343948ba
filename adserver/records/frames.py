"""Results as pandas frames, where pandas is installed (`pip install masked-lark[notebook]`)."""

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
        raise InvalidTask("to_pandas needs pandas: install masked-lark[notebook]") from None
    return pd.DataFrame(list(rows))

"""How a column is read and cut into bins, by name, without what does it: command lines import them."""

from enum import StrEnum, unique


@unique
class Binning(StrEnum):
    """How a numeric column is cut into bins."""

    RANGE = "range"
    """Even bins between the 1st and the 99th percentile; values beyond fall into the outer bins."""
    QUANTILE = "quantile"
    """Bins of even population."""


@unique
class ColumnKind(StrEnum):
    """What a column holds, where a person knows better than its cells."""

    NUMBER = "number"
    CATEGORY = "category"

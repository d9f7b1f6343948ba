"""The network and the training of a project that leaves them open: a rule of its size, columns and budget.

docs/explanation/defaults.md has the rule with what it was measured on.
"""

from typing import Final

from maskedlark.frozen import frozen

ROUNDS: Final = 120
"""Full batches. Twice as many double the work, and gain less than a rate that is off by a factor of two."""
_ROWS_FOR_TABLES: Final = 10_000
"""Rows times epsilon from which 256 rows of a table a number learn more than their noise costs."""
_WIDE: Final = 100
"""Columns from which none says much alone, as pixels do: a hidden layer learns of them, tables do not."""
_HIDDEN: Final = (64,)
_ROWS_A_RATE: Final = 10_000.0
_LEAST_RATE: Final = 0.1
_MOST_RATE: Final = 8.0
_MOST_RATE_OF_HIDDEN: Final = 2.0
"""Hidden layers diverge at longer steps."""


@frozen
class Network:
    """The default network.

    Attributes:
        hidden: Widths of its hidden layers; empty for a linear one.
        are_numbers_in_tables: Whether each number picks a row of a table, beside its straight line.
    """

    hidden: tuple[int, ...]
    are_numbers_in_tables: bool


def choose_network(*, rows: int, epsilon: float, columns: int) -> Network:
    """Return the network for a dataset of so many rows, with so many columns of bytes."""
    is_large = rows * epsilon >= _ROWS_FOR_TABLES
    is_wide = columns > _WIDE
    return Network(
        hidden=_HIDDEN if is_large and is_wide else (), are_numbers_in_tables=is_large and not is_wide
    )


def choose_learning_rate(*, rows: int, epsilon: float, is_linear: bool) -> float:
    """Return the rate of SGD with momentum .9 under a cosine schedule, of gradients over an adaptive bound.

    The noise of a mean gradient is proportional to 1 / (rows epsilon), so where that is large steps are
    short: rows times epsilon over 10,000, between .1 and 8, or 2 for a model with hidden layers.
    """
    most = _MOST_RATE if is_linear else _MOST_RATE_OF_HIDDEN
    return float(f"{min(most, max(_LEAST_RATE, rows * epsilon / _ROWS_A_RATE)):.2g}")

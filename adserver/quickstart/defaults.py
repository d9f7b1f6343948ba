"""The network and the training of a project that leaves them open: a rule of its size, columns and budget.

docs/explanation/defaults.md has the rule with what it was measured on.
"""

from math import sqrt
from typing import Final

from maskedlark.frozen import frozen

ROUNDS: Final = 120
"""Full batches. Twice as many double the work, and gain less than a rate that is off by a factor of two."""
_LARGE: Final = 10_000
"""Rows times epsilon from which 256 rows of a table a number learn more than their noise costs."""
_WIDE: Final = 100
"""Columns from which none says much alone, as pixels do: a hidden layer learns of them, tables do not."""
_HIDDEN: Final = (64,)
_SIGNAL_OF_RATE_1: Final = 170.0
_LEAST_RATE: Final = 0.1
_MOST_RATE: Final = 8.0
_MOST_RATE_OF_HIDDEN: Final = 2.0
"""Hidden layers diverge at longer steps."""
_MOST_RATE_OF_SMALL: Final = 1.0
"""Few rows are soon fitted, and longer steps then only add noise."""


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
    is_large = rows * epsilon >= _LARGE
    is_wide = columns > _WIDE
    return Network(
        hidden=_HIDDEN if is_large and is_wide else (), are_numbers_in_tables=is_large and not is_wide
    )


def choose_learning_rate(*, rows: int, epsilon: float, parameters: int, is_linear: bool) -> float:
    """Return the rate of SGD with momentum .9 under a cosine schedule, of gradients over an adaptive bound.

    The signal of a round, its mean gradient's length over its noise's, is proportional to
    rows x epsilon / sqrt(parameters). The rate is the signal over 170, to the power of 1.5: steps are short
    where noise is most of them. It is between .1 and 8; at most 2 for a model with hidden layers, and 1 for
    rows x epsilon below 10,000.
    """
    signal = rows * epsilon / sqrt(parameters)
    most = _MOST_RATE if is_linear else _MOST_RATE_OF_HIDDEN
    if rows * epsilon < _LARGE:
        most = _MOST_RATE_OF_SMALL
    return float(f"{min(most, max(_LEAST_RATE, (signal / _SIGNAL_OF_RATE_1) ** 1.5)):.2g}")

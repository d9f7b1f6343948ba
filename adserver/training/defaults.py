"""The network and the training of a job or project that leaves them open: a rule of size, columns and budget.

docs/explanation/defaults.md has the rule with what it was measured on.
"""

from math import sqrt
from typing import Final

from maskedlark.frozen import frozen

CALIBRATE: Final = "`adserver model calibrate`"
"""What makes the predictions of two classes add up."""
ROUNDS: Final = 120
"""Of all reports: amplification by smaller batches would not count against the ad server with one helper."""
_ROUNDS_OF_HIDDEN: Final = 300
# Rows times epsilon from which a person's own hidden layer over numbers alone learns more in more rounds.
_ROWS_OF_MORE_ROUNDS: Final = 16_000
ROUNDS_ON_DEVICES: Final = 20
"""At one epsilon the noise on the sum of all rounds grows as they do, and so does what they teach.

Ten are over before that is much: see docs/explanation/defaults.md, "On people's devices".
"""
CLIP_ON_DEVICES: Final = 1.0
"""A round's update of a linear model over some columns: longer ones are mostly one device's own habits."""
# Rows times epsilon from which 256 rows of a table a number learn more than their noise costs.
_LARGE: Final = 10_000
# Columns from which none says much alone, as pixels do: a hidden layer learns of them, tables do not.
_WIDE: Final = 100
_HIDDEN: Final = (64,)
_SIGNAL_OF_RATE_1: Final = 170.0
_LEAST_RATE: Final = 0.1
# Adult gains nothing at 12 or 16.
_MOST_RATE: Final = 8.0
# Hidden layers above tables of words, or of a person's own widths, do worse at longer steps.
_MOST_RATE_OF_HIDDEN: Final = 2.0
# A network of a person's own, whose features are standardised: rows times epsilon for each 1 of its rate.
_ROWS_OF_OWN: Final = 20_000
_MOST_RATE_OF_OWN: Final = 4.0
# Of the default hidden layer over many columns of numbers.
_MOST_RATE_OF_WIDE: Final = 4.0
# Few rows are soon fitted, and longer steps then only add noise.
_MOST_RATE_OF_SMALL: Final = 0.5
_MOST_RATE_OF_RARE: Final = 4.0
# The share of a label below which the quantile .9 of the gradients' norms clips all that tell of it.
_RARE: Final = 0.05
# Panel rows of the rarer label from which calibration makes no model worse that shows.
CALIBRATING: Final = 100
CLIP_OF_RARE: Final = 6.0
"""A bound that a rare label's gradient hardly exceeds, with up to some fifteen columns."""


@frozen
class Network:
    """The default network and clip.

    Attributes:
        hidden: Widths of its hidden layers; empty for a linear one.
        are_numbers_in_tables: Whether each number picks a row of a table, in addition to its straight line.
        clip_norm: The clip bound in all rounds; None: it follows the gradients.
        is_wide: Whether there are so many columns of numbers that none is in a table.
    """

    hidden: tuple[int, ...]
    are_numbers_in_tables: bool
    clip_norm: float | None = None
    is_wide: bool = False


def choose_network(*, rows: int, epsilon: float, columns: int, rarest: float = 0.5) -> Network:
    """Return the network for a dataset of so many rows, with so many columns of bytes.

    `rarest` is the share of the rarer one of two labels.
    """
    if rarest < _RARE:
        return Network(hidden=(), are_numbers_in_tables=False, clip_norm=CLIP_OF_RARE)
    is_large, is_wide = rows * epsilon >= _LARGE, columns > _WIDE
    return Network(
        hidden=_HIDDEN if is_large and is_wide else (),
        are_numbers_in_tables=is_large and not is_wide,
        is_wide=is_wide,
    )


def creation_options(
    network: Network,
    *,
    encoder_file: str | None,
    panel_file: str,
    features: int,
    outputs: int,
    base_rate: float | None,
) -> list[str]:
    """Return the options of `adserver model create` for a default network."""
    hidden = ",".join(map(str, network.hidden))
    if encoder_file is None:
        options = ["--layers", ",".join(map(str, (features, *network.hidden, outputs)))]
    else:
        options = ["--encoder", encoder_file, "--outputs", str(outputs)]
        options += ["--hidden", hidden] if hidden else []
        options += [] if network.are_numbers_in_tables else ["--word-tables-only"]
        options += ["--base-rate", str(base_rate)] if network.clip_norm is not None else []
    if not network.are_numbers_in_tables:
        # A direction that all records share would take most of the clip bound and teach nothing
        options += ["--centred-on", panel_file]
    return options


def should_calibrate(*, examples: int, base_rate: float, mean_over_rate: float) -> bool:
    """Return whether calibrating on so many panel rows helps a model with such a mean prediction.

    It does with 100 rows of the rarer label. With fewer it does if the mean is off by more than the standard
    error of the base rate, and else it fits the panel's chance.
    """
    rarer = examples * min(base_rate, 1 - base_rate)
    error = sqrt((1 - base_rate) / (base_rate * examples))
    # A mean that is not a number is not within the error either: calibration says what to do about it.
    return rarer >= CALIBRATING or not abs(mean_over_rate - 1) <= error


def choose_rounds(*, rows: int, epsilon: float, has_hidden_layer: bool, has_tables: bool) -> int:
    """Return the rounds of a network of a person's own: more for many reports of a hidden layer over numbers.

    Without tables of words it takes such a layer many steps to bend numbers into words and pairs of columns.
    Networks with tables gained as often as they lost.
    """
    is_slow = has_hidden_layer and not has_tables
    return _ROUNDS_OF_HIDDEN if is_slow and rows * epsilon >= _ROWS_OF_MORE_ROUNDS else ROUNDS


def choose_learning_rate(
    *, rows: int, epsilon: float, parameters: int, network: Network | None, heads: int = 1
) -> float:
    """Return the rate of SGD with momentum .9 under a cosine schedule, of gradients over the clip bound.

    The signal of a round, its mean gradient's length over its noise's, is proportional to
    rows x epsilon / sqrt(parameters). The rate is the signal over 170, to the power of 1.5: steps are short
    where noise is most of them. It is between .1 and 8; at most 4 where a label is rare or the default hidden
    layer has many columns, 2 for other hidden layers, and .5 for rows x epsilon below 10,000. For a network
    of a person's own (None) it is at most rows x epsilon / 20,000, and 4.

    Several heads multiply it by the root of their number: the bound, which holds the gradients of all of
    them, is about so many times one head's, and each head's step would be shorter by as much.
    """
    signal = rows * epsilon / sqrt(parameters)
    most = _MOST_RATE
    if network is not None and network.is_wide and network.hidden == _HIDDEN:
        most = _MOST_RATE_OF_WIDE
    elif network is None:
        most = min(_MOST_RATE_OF_OWN, rows * epsilon / _ROWS_OF_OWN)
    elif network.hidden:
        most = _MOST_RATE_OF_HIDDEN
    elif network.clip_norm is not None:
        most = _MOST_RATE_OF_RARE
    # Last, because it holds for every network.
    if rows * epsilon < _LARGE:
        most = min(most, _MOST_RATE_OF_SMALL)
    rate = max(_LEAST_RATE, min(most, (signal / _SIGNAL_OF_RATE_1) ** 1.5))
    return float(f"{sqrt(heads) * rate:.2g}")

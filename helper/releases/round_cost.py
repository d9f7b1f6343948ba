"""What a round of a job will take, estimated from counts before the job starts.

A job that is too dear is refused, alike at both helpers.

The estimate is of the processor time of one core of an ordinary server. It is not exact, and need not be: it
tells a round of seconds from a round of days. Measured on a shared virtual machine, AMD EPYC, per record and
label: chains of 60 Exp and of 60 Tanh take 4 ns an entry, dense networks of 0.4 and 3.2 million parameters
0.06 and 0.11 ns a parameter. The prices are about twice that.
"""

from typing import Final

from maskedlark.frozen import frozen
from maskedlark.model.graph import Model


@frozen
class Prices:
    """What an engine takes for one record and one candidate label, in nanoseconds.

    Attributes:
        multiplication: For each multiplication of a product.
        entry: For each entry of a value, forwards and backwards.
        parameter: For each number of the gradient.
    """

    multiplication: float
    entry: float
    parameter: float


_EXACT: Final = Prices(multiplication=0.1, entry=2.0, parameter=0.1)
_GENERAL: Final = Prices(multiplication=1.0, entry=8.0, parameter=25.0)
_NS: Final = 1e-9


def round_seconds(model: Model, path: str, *, records: int, candidates: int) -> float:
    """How long one round takes a core, roughly.

    Args:
        model: The model.
        path: The gradient engine: exact or general.
        records: How many records a round evaluates.
        candidates: Labels of each record.
    """
    prices = _EXACT if path == "exact" else _GENERAL
    each = (
        prices.multiplication * model.work.multiplications
        + prices.entry * model.work.entries
        + prices.parameter * model.num_parameters
    )
    return _NS * records * candidates * each

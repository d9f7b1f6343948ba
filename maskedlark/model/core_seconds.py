"""How long a helper's core takes for a round of a model, or to score records with it, estimated from counts.

A helper refuses by it what is too dear before it begins, and the ad server plans by it.

The estimate is of the processor time of one core of an ordinary server. It is not exact, and need not be: it
tells a round of seconds from a round of days. Measured on a shared virtual machine, AMD EPYC, per record and
label: chains of 60 Exp and of 60 Tanh take 4 ns an entry, dense networks of 0.4 and 3.2 million parameters
0.06 and 0.11 ns a parameter. The prices are about twice that. Rounds of few records take 230 to 330 ns a
parameter for what is drawn, blinded, stored and sent (`make bench-wide`).
"""

from typing import Final

from maskedlark.frozen import frozen
from maskedlark.model.graph import Model


@frozen
class _Prices:
    """What an engine takes for one record and one candidate label, in nanoseconds.

    Attributes:
        multiplication: For each multiplication of a product.
        entry: For each entry of a value, forwards and backwards.
        parameter: For each number of the gradient, but for tables on the exact path: a record costs the rows
            that it reads, which are entries.
    """

    multiplication: float
    entry: float
    parameter: float


_EXACT: Final = _Prices(multiplication=0.1, entry=2.0, parameter=0.1)
_GENERAL: Final = _Prices(multiplication=1.0, entry=8.0, parameter=25.0)
_NS: Final = 1e-9
# For each parameter of a round, whatever its records: noise, blind, and the answer on its way out
_RELEASE_NS: Final = 250.0


def round_seconds(model: Model, path: str, *, records: int, candidates: int) -> float:
    """Estimate roughly how long one round takes a core.

    Args:
        model: The model.
        path: The gradient engine: exact or general.
        records: How many records a round evaluates.
        candidates: Labels of each record.
    """
    is_exact = path == "exact"
    prices = _EXACT if is_exact else _GENERAL
    # The exact path adds only the rows that a record looks up; the general one a whole gradient.
    touched = model.num_parameters - (_in_tables(model) if is_exact else 0)
    each = (
        prices.multiplication * model.work.multiplications
        + prices.entry * model.work.entries
        + prices.parameter * touched
    )
    return _NS * (records * candidates * each + _RELEASE_NS * model.num_parameters)


def _in_tables(model: Model) -> int:
    """Count the parameters that Gathers read by rows."""
    tables = {node.inputs[0] for node in model.nodes if node.operator == "Gather"}
    return sum(parameter.size for parameter in model.parameters if parameter.name in tables)


def scoring_seconds(model: Model, *, records: int) -> float:
    """Return how long a model's outputs take a core, roughly, on the exact path: the way forward alone."""
    work = model.work
    each = _EXACT.multiplication * work.multiplications + _EXACT.entry * work.entries
    return _NS * records * each

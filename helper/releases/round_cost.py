"""What a round of a job will take, estimated from counts before the job starts.

A job that is too dear is refused: for its time alike at both helpers whose limits are equal. How much memory
a round takes, and may take, also depends on a helper's machine: on its threads and its way to multiply.

The time is by `maskedlark.model.core_seconds`. The estimate of memory counts arrays; `make bench-memory`
holds it against the truth.
"""

from typing import Final

from helper.gradient.engine import GradientEngine
from helper.trust.floors import WorkEstimate
from maskedlark.model.core_seconds import round_seconds
from maskedlark.model.graph import Model

# Of each parameter: the weights and the noise drawn ahead.
_THROUGHOUT_BYTES: Final = 16
# Of each parameter after the sum: the blind, the answer and its copies on the way to the ledger and out.
_RELEASE_BYTES: Final = 32
_LABEL_BYTES: Final = 12
_ANY_ROUND: Final = 4 << 20


def round_cost(model: Model, engine: GradientEngine, *, records: int, candidates: int) -> WorkEstimate:
    """Return what one round takes, roughly: its sum, and what is made of the sum.

    Args:
        model: The model.
        engine: The gradient engine of the job.
        records: How many records a round evaluates.
        candidates: Labels of each record.
    """
    # The general engine takes a round's records at once, in order: their pieces, joined, and sorted.
    copies = 4 if engine.path == "general" else 2
    a_record = model.input_width + _LABEL_BYTES * candidates
    return WorkEstimate(
        seconds=round_seconds(model, engine.path, records=records, candidates=candidates),
        num_bytes=_ANY_ROUND
        + _THROUGHOUT_BYTES * model.num_parameters
        + max(engine.round_bytes(records, candidates), _RELEASE_BYTES * model.num_parameters)
        + copies * records * a_record,
    )

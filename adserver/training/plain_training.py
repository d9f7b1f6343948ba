"""Training without privacy, as on records in the clear: Adam, small batches, a cosine schedule.

    for epochs, weights in train_plainly(model, loss, 0.01, records, np.random.default_rng(0)):
        ...   # test them: no number of steps is the best for all records

Owners' twins of a job (`adserver.training.plain_twin`) and a rehearsal's examples alone are trained so.
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.eval_set import EvalSet
from adserver.training.optimizers import fresh_moments, step
from adserver.training.trainer import split
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.privacy.clip import Clip, Norm

RATES: Final = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Learning rates that are worth a trial."""
_BATCH: Final = 512
_EPOCHS: Final = 10
# Of few records, which are not many steps in so many epochs.
_LEAST_STEPS: Final = 200
CHECKS: Final = 10
"""About how often weights are yielded in a training."""
_UNCLIPPED: Final = Clip(norm=Norm.L2, bound=math.inf, frac_bits=0)

Weights = tuple[NDArray[np.float32], ...]


def train_plainly(
    model: Model,
    loss: TrainedLoss,
    rate: float,
    records: EvalSet,
    random: np.random.Generator,
    *,
    decay: float = 0.0,
    batch: int = _BATCH,
) -> Iterator[tuple[float, Weights]]:
    """Yield epochs and weights: at the start, now and then, and at the end.

    The weights are changed when the next ones are asked for. Each step makes all but the biases smaller by
    the step's rate times `decay` (AdamW).

    Source: I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019.
    """
    from maskedlark.autodiff.clipped_sums import ClippedSums

    sums, adam, schedule = ClippedSums(model, loss), OptimizerKind.ADAM, Schedule(kind=ScheduleKind.COSINE)
    masters = tuple(values.astype(np.float32) for values in model.initial_values)
    moments = fresh_moments(adam, masters)
    batch = min(batch, len(records))
    steps = max(_LEAST_STEPS, _EPOCHS * len(records) // batch)
    yield 0.0, masters
    for done in range(steps):
        chosen = random.choice(len(records), batch, replace=False)
        total = sums.of(masters, records.features[chosen], records.labels[chosen], _UNCLIPPED).vector
        now = rate * schedule.factor(done, steps)
        for master in masters if decay else ():
            if master.ndim > 1:
                np.multiply(master, np.float32(1.0 - min(1.0, now * decay)), out=master)
        # A rate that is too high leaves the finite numbers, and loses the comparison of rates by its loss.
        with np.errstate(over="ignore", invalid="ignore"):
            step(
                Optimizer(kind=adam, learning_rate=rate),
                rate=now,
                steps_taken=done,
                masters=masters,
                moments=moments,
                gradients=split(total / batch, model.parameters),
            )
        if (done + 1) % max(1, steps // CHECKS) == 0 or done + 1 == steps:
            yield (done + 1) * batch / len(records), masters

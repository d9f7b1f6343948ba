"""Models of the jobs without helpers: their instances, or their rounds.

    models = LocalModels(engine)
    JobStore(engine, clock).submit(plan, add_files=models.prepare(plan))
    models.parameters(plan)

The jobs are those of `adserver.store.jobs`: listed, closed to devices and opened again as all others are.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine

from adserver.records.local_plan import LocalPlan
from adserver.store.local.instances import InstanceStore
from adserver.store.local.noised_rounds import NoisedRounds
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.strategies.line import Line
from maskedlark.randomness import Randomness, seeded, system_randomness


class LocalModels:
    """The models, of both strategies. Safe to share between threads."""

    def __init__(self, engine: Engine, randomness: Randomness = system_randomness) -> None:
        """Use a database of `open_store`; `randomness` spreads the first instances."""
        self._randomness = randomness
        self.instances = InstanceStore(engine)
        self.rounds = NoisedRounds(engine)

    def prepare(self, plan: LocalPlan) -> Callable[[Connection], None]:
        """Draw a new job's first model; return what stores it, for the transaction that stores the job.

        Millions of numbers take seconds to draw, and on SQLite reports wait for that transaction.
        """
        settings, model = plan.read_instructions()
        if isinstance(settings, Line) and isinstance(model, DenseModel):
            first_weights = model.initial(seeded(plan.seed, "first weights"))
            state = settings.start(first_weights)
            return partial(self.rounds.create, job_id=plan.local.job_id, state=state)
        if isinstance(settings, DrawAndDiscard):
            first = settings.initial(np.zeros(model.size), self._randomness)
            return partial(self.instances.create, job_id=plan.local.job_id, instances=first)
        raise AssertionError("a job without helpers has one of two strategies")

    def parameters(self, plan: LocalPlan) -> NDArray[np.float64]:
        """Return the current model: LINE's weights, or the mean of the instances."""
        settings, _ = plan.read_instructions()
        if isinstance(settings, DrawAndDiscard):
            return settings.mean(self.instances.instances(plan.local.job_id))
        return self.rounds.state(plan.local.job_id).optimizer.masters

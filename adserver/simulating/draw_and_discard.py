"""Draw and discard in one process: instances, and updates in flight."""

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.generalised_linear import Batches, LinearModel
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.randomness import Randomness


@frozen(eq=False)
class DrawSimulation:
    """Clients that come one after the other.

    Attributes:
        settings: The job's.
        model: Gives gradients.
        batches: One row a client.
        in_flight: L: how many other clients' updates return between a client's draw and its return.
    """

    settings: DrawAndDiscard
    model: LinearModel
    batches: Batches
    in_flight: int = 0

    def run(
        self, instances: SignedVector, order: NDArray[np.int64], randomness: Randomness
    ) -> Iterator[SignedVector]:
        """Let clients draw, step and return; the instances after each return, changed in place.

        Args:
            instances: (k, weights); changed.
            order: Which client comes when.
            randomness: Of the server's draws and the clients' noise.
        """
        drawn_from = self.settings.pick(len(order), randomness)
        replaced = self.settings.pick(len(order), randomness)
        waiting: deque[tuple[int, SignedVector]] = deque()
        returned = 0
        for client, source in zip(order, drawn_from, strict=True):
            # A copy, since others may replace the instance while the client computes.
            waiting.append((int(client), instances[source].copy()))
            if len(waiting) > self.in_flight:
                who, held = waiting.popleft()
                alone = Batches(
                    features=self.batches.features[who : who + 1], labels=self.batches.labels[who : who + 1]
                )
                moved = self.settings.device_steps(self.model, held[None], alone, randomness)
                instances[replaced[returned]] = moved[0]
                returned += 1
                yield instances

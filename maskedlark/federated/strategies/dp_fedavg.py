"""DP-FedAvg: each drawn device trains locally, clips after every batch, and shares its whole difference.

Source: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", 2018,
algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from maskedlark.canonical import canonical
from maskedlark.federated.local_training import Differences, Examples, LocalModel
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.randomness import Randomness


@canonical
class DpFedAvg(Strategy):
    """Federated averaging with user-level privacy.

    Attributes:
        is_clipped_each_batch: Whether a device clips its difference after every batch, as the paper's
            UserUpdate does, or only at the end. The sensitivity is the same.
    """

    kind: Literal["dp-fedavg"] = "dp-fedavg"
    is_clipped_each_batch: bool = True

    def local_differences(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> Differences:
        """Run passes of SGD, clipping the difference to the round's bound after every batch."""
        bound = asked.terms.bound

        def project_onto_bound(differences: Differences) -> Differences:
            return bound.project(differences, model.layer_sizes)

        # The bound of weight-aware clipping is on weight times difference, which a device has at its end.
        is_projected = self.is_clipped_each_batch and not bound.is_weight_aware
        steps = replace(self.steps(stack, randomness), project=project_onto_bound if is_projected else None)
        return model.train(asked.parameters, stack, steps)

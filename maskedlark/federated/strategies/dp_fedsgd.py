"""DP-FedSGD: each drawn device shares one clipped gradient step on one batch of its examples.

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
class DpFedSgd(Strategy):
    """Federated SGD with user-level privacy. `local.batch_size` examples are drawn, in one step."""

    kind: Literal["dp-fedsgd"] = "dp-fedsgd"

    def local_differences(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> Differences:
        """Take one step on the first batch of a random order: a batch drawn without replacement."""
        passes = self.steps(stack, randomness)
        return model.train(asked.parameters, stack, replace(passes, schedule=passes.schedule[:, :1]))

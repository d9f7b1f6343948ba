"""FedProx with user-level privacy: devices are held near the round's model by a proximal term.

None of the seed papers has it. It shows what a further strategy takes: this module, and its name in the
registry and in `maskedlark.federated.kinds`. Clipping, noise, accounting and the server's step are those of
every strategy.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", 2020,
algorithm 2.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.federated.local_training import Differences, Examples, LocalModel
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.randomness import Randomness


@canonical
class FedProx(Strategy):
    """Federated averaging whose devices minimise loss + mu/2 |theta - start|^2.

    Attributes:
        proximal: mu; with 0 devices run plain SGD.
    """

    kind: Literal["fedprox"] = "fedprox"
    proximal: Annotated[float, Field(ge=0.0, le=1e6)] = 0.1

    def local_differences(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> Differences:
        """Run passes of SGD on the loss with the proximal term."""
        steps = replace(self.steps(stack, randomness), proximal=self.proximal)
        return model.train(asked.parameters, stack, steps)

"""What the ad server does with a round's noisy mean: averaging, momentum, Adam or Yogi.

    state = optimizer.start(parameters)
    state = optimizer.step(state, mean_update)  # points where the devices went, as theta' - theta

All of them work on what is public already, so none costs privacy. Plain element-wise float64, so that a
resumed job and a simulation take the same bits.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2 (FedAdam, FedYogi, tau in place of
epsilon).
"""

from typing import Annotated, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.federated.kinds import ServerOptimizerKind
from maskedlark.frozen import frozen

Masters: TypeAlias = NDArray[np.float64]
"""The model in training, flat."""


@frozen
class OptimizerState:
    """The model and the optimizer's memory of past updates.

    Attributes:
        masters: The model.
        first: The decayed sum or mean of updates; zeros where the kind keeps none.
        second: The decayed mean of squared updates; zeros where the kind keeps none.
    """

    masters: Masters
    first: Masters
    second: Masters


@canonical
class ServerOptimizer:
    """A server optimizer's settings.

    Attributes:
        kind: `averaging`, `momentum`, `adam` or `yogi`.
        learning_rate: What multiplies the step; 1 with `averaging` is the papers' rule.
        momentum: The decay of past updates: of `momentum`, and beta 1 of `adam` and `yogi`.
        decay: beta 2 of `adam` and `yogi`.
        tau: What `adam` and `yogi` add to the root of the second moment.
    """

    kind: ServerOptimizerKind = ServerOptimizerKind.AVERAGING
    learning_rate: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3

    def start(self, masters: Masters) -> OptimizerState:
        """Return the state before the first round; Adam's and Yogi's second moment starts at tau^2."""
        zeros = np.zeros_like(masters, np.float64)
        is_adaptive = self.kind in (ServerOptimizerKind.ADAM, ServerOptimizerKind.YOGI)
        # The paper asks for at least tau^2: the first step then divides by no root near zero.
        second = np.full_like(zeros, self.tau**2) if is_adaptive else zeros
        return OptimizerState(masters=masters.astype(np.float64), first=zeros, second=second)

    def step(self, state: OptimizerState, mean_update: Masters) -> OptimizerState:
        """Return the state after one round's mean update."""
        first, second = state.first, state.second
        match self.kind:
            case ServerOptimizerKind.AVERAGING:
                direction = mean_update
            case ServerOptimizerKind.MOMENTUM:
                # A decayed sum and no mean: at 0.9, equal updates come to count ten times.
                first = self.momentum * first + mean_update
                direction = first
            case ServerOptimizerKind.ADAM | ServerOptimizerKind.YOGI:
                first = self.momentum * first + (1.0 - self.momentum) * mean_update
                second = self._second(second, mean_update * mean_update)
                # No correction of the first steps' bias: algorithm 2 has none.
                direction = first / (np.sqrt(second) + self.tau)
            case _:
                assert_never(self.kind)
        masters = state.masters + self.learning_rate * direction
        return OptimizerState(masters=masters, first=first, second=second)

    def _second(self, second: Masters, square: Masters) -> Masters:
        """Update the second moment: Adam moves by the distance to the square, Yogi by the square."""
        if self.kind is ServerOptimizerKind.ADAM:
            return self.decay * second + (1.0 - self.decay) * square
        moved: Masters = second - (1.0 - self.decay) * square * np.sign(second - square)
        return moved

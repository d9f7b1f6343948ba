"""Client-level privacy: cohorts that grow, a bound that follows the median, an end by budget.

The paper clips to the plain median of the norms, takes exactly m of K clients, and accounts for Poisson
sampling. Here the bound follows a quantile by a noised count, clients sample themselves, and updates are only
ever scaled down. (The released code divides small updates by their ratio to the median too, and so scales
them up: nothing bounds their sum.)

Source: Geyer, Klein, Nabi, "Differentially Private Federated Learning: A Client Level Perspective", 2017,
algorithm 1.
"""

from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from maskedlark.canonical import canonical
from maskedlark.federated.strategy import RoundTerms, Strategy
from maskedlark.privacy.accounting import Charge, compose_epsilon


@canonical
class ClientLevel(Strategy):
    """Federated averaging with a schedule of cohorts, stopped at a budget.

    In stage s of n the rate is q times a share f = a + (1 - a) s / (n - 1), and the noise multiplier is
    z f^noise_exponent. The paper keeps z^2 / m the same (an exponent of 1/2), and says that it costs less
    privacy if both are small. By the accountant that holds for large noise (z = 2.5), and the contrary for z
    near 1.

    Attributes:
        epsilon: The budget against one curator that adds all the noise; the job ends before the round that
            passes it.
        delta: Of the budget.
        first_share: The first stage's rate over the last one's, a.
        stages: How many, n, of equal length.
        noise_exponent: How the noise grows with the cohort.
    """

    kind: Literal["client-level"] = "client-level"
    epsilon: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    first_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    stages: Annotated[int, Field(ge=1, le=100)] = 1
    noise_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if (self.first_share < 1.0) != (self.stages > 1):
            raise ValueError("first_share below 1 goes with more than one stage")
        if self.stages > self.rounds:
            raise ValueError("stages is at most rounds")
        return self

    def last_round(self) -> int:
        """Return the number of rounds before the first one that the budget does not allow."""
        return _affordable_rounds(self)

    def terms(self, index: int, clip_share: float = 1.0) -> RoundTerms:
        """Return the terms of a round, by its stage."""
        fixed = Strategy.terms(self, index, clip_share)
        share = self._share(self._stage(index))
        return RoundTerms(
            index=index,
            sampling_rate=fixed.sampling_rate * share,
            noise_multiplier=fixed.noise_multiplier * share**self.noise_exponent,
            bound=fixed.bound,
        )

    def charges(self, rounds: int) -> list[Charge]:
        """Return the cost of the first rounds, one charge a stage: see `Strategy.charges`."""
        lengths = [0] * self.stages
        for index in range(rounds):
            lengths[self._stage(index)] += 1
        return [
            Charge(
                mechanism=self.helper_mechanism,
                noise_multiplier=self.noise_multiplier * self._share(stage) ** self.noise_exponent,
                sampling_rate=self.sampling_rate * self._share(stage),
                rounds=length,
            )
            for stage, length in enumerate(lengths)
            if length
        ]

    def _stage(self, index: int) -> int:
        return min(index, self.rounds - 1) * self.stages // self.rounds

    def _share(self, stage: int) -> float:
        if self.stages == 1:
            return 1.0
        return self.first_share + (1.0 - self.first_share) * stage / (self.stages - 1)


# Every round asks for the last one, and each halving composes all stages anew.
@lru_cache(maxsize=64)
def _affordable_rounds(strategy: ClientLevel) -> int:
    """Return how many of a strategy's rounds its budget allows: all of them without a budget."""
    if strategy.epsilon is None:
        return strategy.rounds
    # The cost grows with each round, so that halving finds the last one that the budget allows.
    enough, too_many = 0, strategy.rounds + 1
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if compose_epsilon(strategy.charges(middle), strategy.delta) <= strategy.epsilon:
            enough = middle
        else:
            too_many = middle
    return enough

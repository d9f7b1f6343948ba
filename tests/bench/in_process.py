"""Both helpers of a training in this process, by the product's own functions, beside the ad server's trainer.

What runs is what the services run: the sample from the helpers' key, the exact gradient engine,
`round.aggregate` at both helpers with the blind and the discrete noise of each, and `combine`. What is left
out are sealing, the network and the stores, which change no number; and the masks: helper 0's is 1 at the
real label, helper 1's is 0, and there is no decoy. Both helpers' sums add up to the same field elements as
with random masks, bit for bit, and helper 1 is spared a gradient.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adserver.records.training_plan import TrainingPlan
from adserver.training.runner import mean_excess, mean_gradient
from adserver.training.trainer import Masters, Trainer
from helper.gradient.choose import choose_engine
from maskedlark.model import weights
from maskedlark.model.graph import Model
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.correlated import StepStreams, draw_step_noise
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import STREAM_KEY_BYTES, Stream, derive_key, system_randomness
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.round import MaskedSum, aggregate
from maskedlark.reports.input_shares import InputShares
from tests.builders import World, of_shares


class TwoHelpers:
    """Both helpers with one dataset."""

    def __init__(
        self,
        of: World,
        plan: TrainingPlan,
        model: Model,
        features: NDArray[np.uint8],
        labels: NDArray[np.int64],
    ) -> None:
        self._pairs = (of.pair(0), of.pair(1))
        self._plan, self._model = plan, model
        clip = plan.job.clip(plan.task)
        self._engine = choose_engine(model, plan.job.loss, clip, of.task.labels.size)
        candidates = labels[:, None].astype(np.uint32)
        ones = np.ones(candidates.shape, np.uint64)
        real = InputShares(features=features, labels=candidates, mask_shares=ones)
        self._shares = (real, replace(real, mask_shares=np.zeros_like(ones)))
        self._before: list[bytes | None] = [None, None]

    def answers(self, round_index: int, sent: bytes) -> tuple[AggregateShare, AggregateShare]:
        """Both answers to what the ad server sends for a round."""
        plan, engine, encoded, clip = (
            self._plan,
            self._engine,
            sent,
            self._plan.job.clip(self._plan.task),
        )
        if plan.job.is_clip_adaptive:
            encoded, bound = adaptive_clip.RoundInput.decode(sent, clip)
            clip = plan.job.clip(plan.task, bound)
            engine = engine.with_clip(clip)
        tensors = weights.decode(encoded, self._model.parameters)
        script = plan.job.round_transcript(round_index=round_index, weights=sent, numerics=bytes(32))
        summed: list[MaskedSum] = []

        def by_helper_0(batch: InputShares) -> MaskedSum:
            summed.append(engine.masked_sum(tensors, batch))
            return summed[0]

        def by_helper_1(_: InputShares) -> MaskedSum:
            return replace(summed[0], vector=np.zeros_like(summed[0].vector))  # its masks are zeros

        def share(role: int, masked_sum: Callable[[InputShares], MaskedSum]) -> AggregateShare:
            return aggregate(
                task=plan.task,
                job=plan.job,
                pair=self._pairs[role],
                round_index=round_index,
                round_transcript=script,
                records=len(self._shares[role]),
                masked_sum=of_shares(self._shares[role], masked_sum),
                num_values=plan.job.num_values(self._model.num_parameters),
                noise=lambda mechanism, scale, count: self._noise(role, mechanism, scale, count),
                clip=clip,
            )

        return share(0, by_helper_0), share(1, by_helper_1)

    def _noise(self, role: int, mechanism: Mechanism, scale: int, count: int) -> NDArray[np.int64]:
        """Draw one helper's noise of a round."""
        carried = self._plan.job.carried
        if carried is None:
            return noise_vector(mechanism, scale, count, system_randomness)
        seed, before = system_randomness(STREAM_KEY_BYTES), self._before[role]
        self._before[role] = seed
        streams = StepStreams(
            kept=Stream(derive_key(seed, b"kept")),
            own=Stream(derive_key(seed, b"own")),
            before=None if before is None else Stream(derive_key(before, b"kept")),
        )
        return draw_step_noise(carried, scale, count, streams)


def train_in_process(
    of: World, plan: TrainingPlan, model: Model, features: NDArray[np.uint8], labels: NDArray[np.int64]
) -> Masters:
    """Run all rounds of a plan, as `adserver.training.runner` does, and return the trained weights."""
    helpers, trainer = TwoHelpers(of, plan, model, features, labels), Trainer(model=model, plan=plan)
    for round_index in range(plan.job.rounds):
        clip = trainer.clip()
        mean = mean_gradient(plan, *helpers.answers(round_index, trainer.weights()))
        trainer.step(mean[: model.num_parameters])
        if plan.job.is_clip_adaptive:
            trainer.follow_quantile(mean_excess(plan, clip, float(mean[-1])))
    return trainer.values()

"""Step 8: the model in training: float32 masters, the weights that a round sends, and the optimizer's step.

Everything that decides the next step is in the checkpoint, so a process that was killed goes on with the same
bits.
"""

import math
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from adserver.records.round_figures import is_as_good
from adserver.records.training_plan import TrainingPlan
from adserver.training.optimizers import fresh_moments, step
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model, Parameter
from maskedlark.model.weights import encode, quantise
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.clip import Clip

Masters = tuple[NDArray[np.float32], ...]
"""One array a parameter, in the model's order."""


@frozen
class BestWeights:
    """The weights that did best on the job's evaluation set so far: the latest of those that were as good.

    Attributes:
        rounds_done: After how many rounds.
        least: The least `RoundFigures.choosing_loss` of all that were evaluated.
        masters: The weights.
    """

    rounds_done: int
    least: float
    masters: Masters

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint's file holds of them, by name."""
        return {f"best_{index}": master for index, master in enumerate(self.masters)} | {
            "best_after": np.array(self.rounds_done),
            "least_loss": np.array(self.least, np.float64),
        }

    def added_to(self, stored: bytes) -> bytes:
        """Return a state of training, an npz file, with these weights added to its arrays."""
        whole = BytesIO()
        with np.load(BytesIO(stored), allow_pickle=False) as arrays:
            np.savez(whole, allow_pickle=False, **arrays, **self.arrays())
        return whole.getvalue()

    @classmethod
    def decode(cls, stored: bytes) -> "BestWeights | None":
        """Read what a checkpoint's file holds of them, if any."""
        with np.load(BytesIO(stored), allow_pickle=False) as arrays:
            return cls.read(arrays)

    @classmethod
    def read(cls, arrays: NpzFile) -> "BestWeights | None":
        """Read what an open checkpoint's file holds of them, if any."""
        if "least_loss" not in arrays.files:
            return None
        count = sum(name.removeprefix("best_").isdecimal() for name in arrays.files)
        return cls(
            rounds_done=int(arrays["best_after"]),
            least=float(arrays["least_loss"]),
            masters=tuple(arrays[f"best_{index}"] for index in range(count)),
        )

    @classmethod
    def after(
        cls, before: "BestWeights | None", loss: float, *, rounds_done: int, masters: Masters
    ) -> "BestWeights":
        """Return the best weights after others were evaluated: the others, unless those before did better."""
        if before is not None and not is_as_good(loss, before.least):
            return before
        least = math.inf if before is None else before.least
        return cls(rounds_done=rounds_done, least=min(least, loss), masters=masters)


@frozen
class Checkpoint:
    """The state of training between two rounds.

    Attributes:
        rounds_done: How many steps were taken: also the index of the next round.
        masters: The weights.
        moments: What the optimizer remembers: see `optimizers`.
        clip_share: Of an adaptive clip: the bound over the job's largest; 1 otherwise.
        best: None in a job without an evaluation set, and before it was used.
    """

    rounds_done: int
    masters: Masters
    moments: tuple[Masters, ...]
    clip_share: float = 1.0
    best: BestWeights | None = None

    def encode(self) -> bytes:
        """Encode as an npz file: the same bytes for the same state."""
        arrays = {f"master_{index}": master for index, master in enumerate(self.masters)}
        for number, moment in enumerate(self.moments):
            arrays |= {f"moment_{number}_{index}": array for index, array in enumerate(moment)}
        if self.best is not None:
            arrays |= self.best.arrays()
        stored = BytesIO()
        np.savez(
            stored,
            allow_pickle=False,
            rounds_done=np.int64(self.rounds_done),
            clip_share=np.float64(self.clip_share),
            moments=np.int64(len(self.moments)),
            **arrays,
        )
        return stored.getvalue()

    @classmethod
    def decode(cls, stored: bytes) -> "Checkpoint":
        """Read what `encode` wrote."""
        # Without pickle, which would run what a file says.
        with np.load(BytesIO(stored), allow_pickle=False) as state:
            count = sum(name.startswith("master_") for name in state.files)
            return cls(
                rounds_done=int(state["rounds_done"]),
                masters=tuple(state[f"master_{index}"] for index in range(count)),
                moments=tuple(
                    tuple(state[f"moment_{number}_{index}"] for index in range(count))
                    for number in range(int(state["moments"]))
                ),
                clip_share=float(state["clip_share"]),
                best=BestWeights.read(state),
            )

    def values(self) -> Masters:
        """Return the weights."""
        return self.masters


class Trainer:
    """One job's model and optimizer, in memory."""

    def __init__(self, *, model: Model, plan: TrainingPlan, checkpoint: Checkpoint | None = None) -> None:
        """Begin at the model's initial values, or go on from a checkpoint of the same model and plan."""
        self._parameters = model.parameters
        self._masters: Masters = tuple(values.astype(np.float32) for values in model.initial_values)
        self._moments = fresh_moments(plan.optimizer.kind, self._masters)
        self._rounded: bytes | None = None
        self._plan = plan
        self._clip_share = 1.0 if plan.adaptive_clip is None else plan.adaptive_clip.initial
        self.rounds_done = 0
        if checkpoint is not None:
            self._restore(checkpoint)

    def weights(self) -> bytes:
        """Return the next round's input as both helpers receive it.

        The masters, rounded to 14 bits, and behind them an adaptive clip's bound.

        Raises:
            InvalidModel(NOT_FINITE): a master is no number, or outside the range.
        """
        # Once a step: the check of the range and the next round ask for the same bytes.
        if self._rounded is None:
            named = zip(self._masters, self._parameters, strict=True)
            self._rounded = encode([quantise(master, of.name) for master, of in named])
        if self._plan.adaptive_clip is None:
            return self._rounded
        return adaptive_clip.RoundInput(weights=self._rounded, bound=self.clip().bound).encode()

    def clip(self) -> Clip:
        """Return the next round's bound on one record's gradient."""
        largest = self._plan.job.clip(self._plan.task)
        if self._plan.adaptive_clip is None:
            return largest
        return replace(largest, bound=largest.bound * adaptive_clip.on_grid(self._clip_share))

    def follow_quantile(self, excess: float) -> None:
        """Move an adaptive clip's bound by what a round tells of the one before: see `AdaptiveClip.next`."""
        if self._plan.adaptive_clip is not None:
            self._clip_share = self._plan.adaptive_clip.next(self._clip_share, excess)

    def values(self) -> Masters:
        """Return a copy of the master weights."""
        # Copies, because a step changes the masters in place.
        return tuple(master.copy() for master in self._masters)

    def step(self, mean_gradient: NDArray[np.float64]) -> float:
        """Take one optimizer step. In an adaptive job the gradient is divided by the round's bound first.

        Args:
            mean_gradient: (P,), in the model's order of parameters; rounded to float32 here.

        Returns:
            The learning rate of this step.

        Raises:
            InvalidModel(DIVERGED): the step left the range of weights that a round can send; the trainer must
            not be used on.
        """
        optimizer, rounds = self._plan.optimizer, self._plan.job.rounds
        # In units of the bound, so that a learning rate means the same while the bound moves.
        if self._plan.adaptive_clip is not None:
            mean_gradient = mean_gradient / self.clip().bound
        rate = optimizer.learning_rate * self._plan.schedule.factor(self.rounds_done, rounds)
        with np.errstate(over="ignore", invalid="ignore"):  # a weight that left the range is refused below
            step(
                optimizer,
                rate=rate,
                steps_taken=self.rounds_done,
                masters=self._masters,
                moments=self._moments,
                gradients=split(mean_gradient, self._parameters),
            )
        self._rounded = None
        self.rounds_done += 1
        self._check_range()
        return rate

    def checkpoint(self) -> Checkpoint:
        """Return the present state; it shares memory with the trainer, so encode it before the next step."""
        return Checkpoint(
            rounds_done=self.rounds_done,
            masters=self._masters,
            moments=self._moments,
            clip_share=self._clip_share,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        own = zip((self._masters, *self._moments), (checkpoint.masters, *checkpoint.moments), strict=True)
        for arrays, stored in own:
            for array, kept in zip(arrays, stored, strict=True):
                array[...] = kept
        self._clip_share = checkpoint.clip_share
        self.rounds_done = checkpoint.rounds_done

    def _check_range(self) -> None:
        try:
            self.weights()
        except InvalidModel as error:
            raise InvalidModel(
                ModelReason.DIVERGED, f"training diverged ({error}): use a smaller learning rate"
            ) from None


def split(flat: NDArray[np.float64], parameters: tuple[Parameter, ...]) -> Masters:
    """Split a flat vector into one float32 array a parameter."""
    ends = np.cumsum([parameter.size for parameter in parameters])
    pieces = np.split(flat.astype(np.float32), ends[:-1])
    return tuple(piece.reshape(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True))

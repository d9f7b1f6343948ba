"""Step 8: the model in training: float32 masters, the weights that a round sends, and the optimizer's step.

Everything that decides the next step is in the checkpoint, so a process that was killed goes on with the same
bits.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LambdaLR

from adserver.records.training_plan import Optimizer, OptimizerKind, TrainingPlan
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import Model, Parameter
from maskedlark.model.weights import encode, quantise
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.clip import Clip
from maskedlark.releases.job import job_clip

Masters = tuple[NDArray[np.float32], ...]
"""One array a parameter, in the model's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of training between two rounds.

    Attributes:
        rounds_done: How many steps were taken: also the index of the next round.
        masters: The weights.
        optimizer: torch's state of the optimizer.
        schedule: torch's state of the learning-rate schedule.
        clip_share: Of an adaptive clip: the bound over the task's; 1 otherwise.
    """

    rounds_done: int
    masters: tuple[torch.Tensor, ...]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    clip_share: float = 1.0

    def encode(self) -> bytes:
        """The stored form."""
        stored = BytesIO()
        state = {
            "rounds_done": self.rounds_done,
            "masters": list(self.masters),
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "clip_share": self.clip_share,
        }
        torch.save(state, stored)
        return stored.getvalue()

    @classmethod
    def decode(cls, stored: bytes) -> "Checkpoint":
        """Read what `encode` wrote; only tensors and plain values are unpickled."""
        state = torch.load(BytesIO(stored), weights_only=True)
        return cls(
            rounds_done=state["rounds_done"],
            masters=tuple(state["masters"]),
            optimizer=state["optimizer"],
            schedule=state["schedule"],
            clip_share=state["clip_share"],
        )

    def values(self) -> Masters:
        """The weights as arrays."""
        return tuple(master.numpy() for master in self.masters)


class Trainer:
    """One job's model and optimizer, in memory."""

    def __init__(self, *, model: Model, plan: TrainingPlan, checkpoint: Checkpoint | None = None) -> None:
        """Begin at the model's initial values, or go on from a checkpoint of the same model and plan."""
        self._parameters = model.parameters
        self._masters = [torch.from_numpy(values.copy()) for values in model.initial_values]
        self._optimizer = _optimizer(plan.optimizer, self._masters)
        self._schedule = LambdaLR(self._optimizer, lambda index: plan.schedule.factor(index, plan.job.rounds))
        self._plan = plan
        self._clip_share = 1.0 if plan.adaptive_clip is None else plan.adaptive_clip.initial
        self.rounds_done = 0
        if checkpoint is not None:
            self._restore(checkpoint)

    def weights(self) -> bytes:
        """The next round's input as both helpers get it.

        The masters, rounded to 14 bits, and behind them an adaptive clip's bound.

        Raises:
            InvalidModel(NOT_FINITE): a master is no number, or outside the range.
        """
        encoded = encode(
            [
                quantise(master.numpy(), of.name)
                for master, of in zip(self._masters, self._parameters, strict=True)
            ]
        )
        if self._plan.adaptive_clip is None:
            return encoded
        return adaptive_clip.encode(adaptive_clip.RoundInput(weights=encoded, bound=self.clip().bound))

    def clip(self) -> Clip:
        """The next round's bound on one record's gradient."""
        bound = self._plan.task.clip_norm
        if self._plan.adaptive_clip is not None:
            bound *= adaptive_clip.on_grid(self._clip_share)
        return job_clip(self._plan.task, self._plan.job, bound)

    def follow_quantile(self, excess: float) -> None:
        """Move an adaptive clip's bound by what a round tells of the one before: see `AdaptiveClip.next`."""
        if self._plan.adaptive_clip is not None:
            self._clip_share = self._plan.adaptive_clip.next(self._clip_share, excess)

    def values(self) -> Masters:
        """A copy of the masters."""
        return tuple(master.numpy().copy() for master in self._masters)

    def step(self, mean_gradient: NDArray[np.float64]) -> float:
        """Take one optimizer step.

        Args:
            mean_gradient: (P,), in the model's order of parameters; rounded to float32 here.

        Returns:
            The learning rate of this step.

        Raises:
            InvalidModel(DIVERGED): the step left the range of weights that a round can send; the trainer must
            not be used on.
        """
        for master, gradient in zip(self._masters, split(mean_gradient, self._parameters), strict=True):
            master.grad = torch.from_numpy(gradient)
        (learning_rate,) = self._schedule.get_last_lr()
        self._optimizer.step()
        self._schedule.step()
        self.rounds_done += 1
        self._check_range()
        return float(learning_rate)

    def checkpoint(self) -> Checkpoint:
        """The present state; it shares memory with the trainer, so encode it before the next step."""
        return Checkpoint(
            rounds_done=self.rounds_done,
            masters=tuple(self._masters),
            optimizer=self._optimizer.state_dict(),
            schedule=self._schedule.state_dict(),
            clip_share=self._clip_share,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        for master, stored in zip(self._masters, checkpoint.masters, strict=True):
            master.copy_(stored)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self._schedule.load_state_dict(checkpoint.schedule)
        self._clip_share = checkpoint.clip_share
        self.rounds_done = checkpoint.rounds_done

    def _check_range(self) -> None:
        try:
            self.weights()
        except InvalidModel as error:
            raise InvalidModel(
                ModelReason.DIVERGED, f"training diverged: {error}: use a smaller learning rate"
            ) from None


def split(flat: NDArray[np.float64], parameters: tuple[Parameter, ...]) -> Masters:
    """A flat vector as one float32 array a parameter."""
    ends = np.cumsum([parameter.size for parameter in parameters])
    pieces = np.split(flat.astype(np.float32), ends[:-1])
    return tuple(piece.reshape(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True))


def _optimizer(settings: Optimizer, masters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of torch.

    One tensor at a time, so that the number of tensors never changes how a step is computed.
    """
    rate = settings.learning_rate
    match settings.kind:
        case OptimizerKind.SGD:
            return torch.optim.SGD(masters, lr=rate, foreach=False)
        case OptimizerKind.MOMENTUM:
            return torch.optim.SGD(masters, lr=rate, momentum=settings.momentum, foreach=False)
        case OptimizerKind.ADAM:
            return torch.optim.Adam(masters, lr=rate, foreach=False)
        case OptimizerKind.ADAGRAD:
            return torch.optim.Adagrad(masters, lr=rate, foreach=False)

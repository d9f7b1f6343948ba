"""The optimizers and schedules by name, without the plan that uses them: command lines import them."""

from enum import StrEnum, unique


@unique
class OptimizerKind(StrEnum):
    """How a mean gradient becomes a step.

    Each as torch.optim defines it, with its defaults for what is not set here.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAGRAD = "adagrad"


@unique
class ScheduleKind(StrEnum):
    """How the learning rate changes from round to round."""

    CONSTANT = "constant"
    COSINE = "cosine"
    """Half a cosine over all rounds, from 1 down to `final_factor`."""
    STEP = "step"
    """Times `step_factor` every `step_rounds` rounds."""
    LINEAR_WARMUP = "linear-warmup"
    """Up in equal steps over `warmup_rounds` rounds, then constant."""

"""The ways to draw batches and to correlate noise, without their accounting: command lines import them."""

from enum import StrEnum, unique


@unique
class Sampling(StrEnum):
    """How a job takes its batches."""

    ALLOCATION = "allocation"
    """In each epoch each record takes part in one round, whose number is drawn for it alone."""
    POISSON = "poisson"
    """In each round each record takes part with the job's rate."""


@unique
class StepNoise(StrEnum):
    """The correlation of the noise of a job's rounds."""

    INDEPENDENT = "independent"
    """Each round has independent noise."""
    CORRELATED = "correlated"
    """Each round takes a part of the noise of the round before out again."""

"""How a person wants a job to draw its samples and its noise: the part that submissions and plans share."""

from dataclasses import fields
from typing import Any

from maskedlark.frozen import frozen
from maskedlark.releases.sampling import StepNoise


@frozen
class SamplingOptions:
    """What a submission, a request for a plan and the room of a plan have in common.

    Attributes:
        is_allocated: Whether each record takes part in one round of an epoch, instead of being drawn anew in
            each round.
        is_sample_public: Whether the samples are charged as known to the ad server; they are anyway where
            they may be smaller than min_batch_size.
        noise: How the noise of the rounds is correlated.
        carried: Of correlated noise, see `JobSpec`; None for what fits the optimizer best.
    """

    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = None

    def sampling(self) -> dict[str, Any]:
        """Return these fields alone, by name."""
        # Not `asdict`: subclasses have further fields, which belong elsewhere.
        return {one.name: getattr(self, one.name) for one in fields(SamplingOptions)}

"""A planned job with independent and with correlated noise, side by side, for both budgets.

compare(planner, planner.plan(wish).recommended)
"""

from adserver.budgets.planner import Option, Planner
from maskedlark.errors import JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import StepNoise


@frozen
class Comparison:
    """One job with each kind of noise, each with the least noise that fits both budgets.

    Attributes:
        independent: None if no such noise fits.
        correlated: The same.
        refusal: Why one of the two is missing, in words.
    """

    independent: Option | None
    correlated: Option | None
    refusal: str = ""

    @property
    def better(self) -> Option | None:
        """The one that is worth more steps without noise."""
        both = [one for one in (self.independent, self.correlated) if one is not None]
        return max(both, key=lambda one: one.steps_worth, default=None)


def compare(planner: Planner, option: Option) -> Comparison | None:
    """Compare a job's rounds and batches with either noise; None where correlated noise is never possible."""
    if planner.room.task.mechanism is not Mechanism.GAUSSIAN:
        return None
    found: dict[StepNoise, Option | None] = {}
    refusal = ""
    for noise in StepNoise:
        try:
            found[noise] = option if planner.room.noise is noise else planner.with_noise(noise, option)
        except JobRefused as refused:
            found[noise], refusal = None, str(refused)
    return Comparison(
        independent=found[StepNoise.INDEPENDENT], correlated=found[StepNoise.CORRELATED], refusal=refusal
    )

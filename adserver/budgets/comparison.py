"""A planned job with independent and with correlated noise, side by side, for both budgets.

Where the budget against collusion binds, also with larger batches: sampling does not count there, so they
have less noise in each step at the same epsilon, and cost only the helpers' time.

compare(planner, planner.plan(wish).recommended)
"""

from typing import Final

from adserver.budgets.headroom import Limit
from adserver.budgets.planner import Option, Planner, choose
from maskedlark.errors import JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import StepNoise

# How many larger batches are looked at; the last one is the whole dataset
_LARGER: Final = 4


@frozen
class Comparison:
    """One job with each kind of noise, each with the least noise that fits both budgets.

    Attributes:
        independent: None if no such noise fits.
        correlated: The same.
        refusal: Why one of the two is missing, in words.
        larger: The same rounds with larger batches and either noise, where the budget against collusion
            binds; else none.
    """

    independent: Option | None
    correlated: Option | None
    refusal: str = ""
    larger: tuple[Option, ...] = ()

    @property
    def better(self) -> Option | None:
        """The one that is worth more steps without noise, as of `choose`."""
        both = [one for one in (self.independent, self.correlated) if one is not None]
        return choose(both) if both else None


def compare(planner: Planner, option: Option) -> Comparison | None:
    """Compare a job's rounds and batches with either noise; None where correlated noise is never possible."""
    if planner.room.task.mechanism is not Mechanism.GAUSSIAN:
        return None
    found: dict[StepNoise, Option | None] = {}
    refusal = ""
    for noise in StepNoise:
        try:
            found[noise] = (
                option
                if planner.room.noise is noise
                else planner.with_noise(noise, option.rounds, option.batch_size)
            )
        except JobRefused as refused:
            found[noise], refusal = None, str(refused)
    return Comparison(
        independent=found[StepNoise.INDEPENDENT],
        correlated=found[StepNoise.CORRELATED],
        refusal=refusal,
        larger=_larger(planner, option) if option.limit is Limit.COLLUDING else (),
    )


def _larger(planner: Planner, option: Option) -> tuple[Option, ...]:
    """Return the same rounds with larger batches, up to all reports, with each noise that fits."""
    size = float(planner.room.dataset_size)
    if option.batch_size >= size:
        return ()
    factor = (size / option.batch_size) ** (1 / _LARGER)
    batches = [float(round(option.batch_size * factor**power)) for power in range(1, _LARGER)]
    found: list[Option] = []
    for batch in dict.fromkeys([*(one for one in batches if option.batch_size < one < size), size]):
        for noise in StepNoise:
            try:
                found.append(planner.with_noise(noise, option.rounds, batch))
            except JobRefused:  # correlated noise needs two batches an epoch, and no more than so many epochs
                continue
    return tuple(found)

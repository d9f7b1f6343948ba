"""The batches of a job, the correlation of its rounds' noise, and the charges for both.

The ad server plans with it, and `maskedlark.releases.job` charges by it.
"""

from dataclasses import replace

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy import correlated
from maskedlark.privacy.charge import Charge
from maskedlark.privacy.composing.random_allocation import MAX_STEPS
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import EXPOSURE, hides
from maskedlark.releases.release import charge_of
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from maskedlark.reports.task import Task


@frozen
class Samples:
    """How a job samples: see the attributes of `JobSpec`."""

    sampling_numerator: int
    epoch_steps: int | None = None
    is_public: bool = False
    carried: int | None = None

    @property
    def rate(self) -> float:
        """The probability that a record is in a round."""
        if self.epoch_steps is not None:
            return 1 / self.epoch_steps
        return self.sampling_numerator / SAMPLING_DENOMINATOR

    @classmethod
    def of(
        cls, task: Task, *, batch_size: float, dataset_size: int, is_allocated: bool, is_public: bool = False
    ) -> "Samples":
        """Return the samples of about a given size. Called by the ad server.

        They are public if the caller wants that, or if their size may show which records are in them.
        """
        steps = (
            _steps_of_epoch(expected_batch_size=batch_size, dataset_size=dataset_size)
            if is_allocated
            else None
        )
        if steps is not None:
            numerator = SAMPLING_DENOMINATOR // steps
        elif is_allocated:
            numerator = SAMPLING_DENOMINATOR
        else:
            numerator = cls.numerator(expected_batch_size=batch_size, dataset_size=dataset_size)
        found = cls(sampling_numerator=numerator, epoch_steps=steps, is_public=is_public)
        is_hidden = hides(
            dataset_size=dataset_size, rate=found.rate, k=task.min_batch_size, reports=task.reports_per_user
        )
        is_noisy = task.mechanism is not Mechanism.NONE
        # Helpers refuse to count secrecy that the size may give away: the ad server plans with the honest
        # charge.
        return found if is_hidden or not is_noisy else replace(found, is_public=True)

    @staticmethod
    def numerator(*, expected_batch_size: float, dataset_size: int) -> int:
        """Return the sampling rate for an expected batch, at least one in 2^32 and at most all.

        Called by the ad server.
        """
        return max(
            1, min(SAMPLING_DENOMINATOR, round(SAMPLING_DENOMINATOR * expected_batch_size / dataset_size))
        )

    def carrying(self, task: Task, *, rounds: int, momentum: float, carried: int | None = None) -> "Samples":
        """Return the same samples, of random allocation, with correlated noise. Called by the ad server.

        Args:
            task: Its mechanism counts.
            rounds: The job's.
            momentum: Of its optimizer.
            carried: See `JobSpec`; None for what leaves the weights the smallest error.

        Raises:
            JobRefused(MALFORMED): saying what fits.
        """
        check_noise_carries(task)
        why = self.why_not_carried(rounds)
        if self.epoch_steps is None or why is not None:
            raise JobRefused(JobReason.MALFORMED, str(why))
        if carried is None:
            epochs = -(-rounds // self.epoch_steps)
            carried = correlated.best_carried(steps=self.epoch_steps, epochs=epochs, momentum=momentum)
        return replace(self, carried=carried)

    def charge(self, task: Task, noise_multiplier: float, *, rounds: int) -> Charge:
        """Return the charge of rounds with these samples.

        Used by the ad server's planner and by `JobSpec.charge`. Rounds of correlated noise together are one
        release.
        """
        steps = self.epoch_steps or 1
        if self.carried is not None:
            one, epochs = charge_of(task, noise_multiplier), -(-rounds // steps)
            # One Gaussian release of sensitivity `length`: Denisov et al. 2022, at the worst slot.
            length = correlated.sensitivity(self.carried, steps=steps, epochs=epochs)
            together = replace(one, noise_multiplier=one.noise_multiplier / length)
            if self.is_public:
                return together
            apart = correlated.slots_apart(self.carried, steps=steps, epochs=epochs)
            # The slots, and so the sizes that may show, are the same in all epochs.
            return replace(
                together, epoch_steps=apart.slots, overlap=apart.overlap, exposure=steps * EXPOSURE
            )
        # An epoch that has begun is charged whole: slots of its later steps are decided by then.
        charged = charge_of(task, noise_multiplier, rounds=-(-rounds // steps))
        if self.is_public or self.sampling_numerator == SAMPLING_DENOMINATOR:
            return charged
        if steps > 1:
            return replace(charged, epoch_steps=steps, exposure=steps * EXPOSURE)
        return replace(
            charged, sampling_rate=self.sampling_numerator / SAMPLING_DENOMINATOR, exposure=EXPOSURE
        )

    def why_not_carried(self, rounds: int) -> str | None:
        """Explain why a job's rounds cannot have correlated noise; None if they can."""
        if self.epoch_steps is None:
            return (
                "correlated noise requires random allocation with epoch_steps of 2 or more: it gains "
                "nothing if each round uses all records, and is not proven for Poisson samples; use "
                "smaller batches"
            )
        if -(-rounds // self.epoch_steps) > correlated.MAX_EPOCHS:
            return (
                f"correlated noise is limited to {correlated.MAX_EPOCHS} epochs: use fewer rounds or "
                "smaller batches"
            )
        return None


def _steps_of_epoch(*, expected_batch_size: float, dataset_size: int) -> int | None:
    """Return the steps of an epoch with batches of about a size; None where one batch is everything.

    Called by the ad server. The expected batch is the dataset's size over the steps, at least what was asked
    for.
    """
    steps = min(MAX_STEPS, int(dataset_size / expected_batch_size))
    return steps if steps > 1 else None


def check_noise_carries(task: Task) -> None:
    """Refuse correlated noise in a task that has none, or Laplace noise.

    Raises:
        JobRefused(MALFORMED)
    """
    if task.mechanism is not Mechanism.GAUSSIAN:
        raise JobRefused(
            JobReason.MALFORMED,
            "correlated noise must be Gaussian, but the task's mechanism is "
            f"{task.mechanism.value}: submit the job with independent noise",
        )

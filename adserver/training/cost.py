"""What a job's rounds cost, as the ad server shows it.

The helpers' own ledgers decide; this repeats their sum for one job.
"""

from dataclasses import replace

from adserver.records.federated_plan import FederatedPlan
from adserver.records.training_plan import TrainingPlan
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism


def job_epsilons(plan: TrainingPlan, rounds: int) -> Epsilons:
    """Return what so many rounds of a job cost at the task's delta, not counting other jobs on the dataset.

    Infinite without noise.
    """
    return spent([plan.job.charge(plan.task, rounds)] if rounds else [], plan.task.delta)


def privacy_line(plan: TrainingPlan, rounds: int) -> str:
    """Describe in one line what so many rounds cost."""
    if plan.task.mechanism is Mechanism.NONE:
        return "no noise: no privacy"
    epsilons = job_epsilons(plan, rounds)
    return (
        f"{plan.task.mechanism} noise {plan.job.noise_multiplier:.3g}, epsilon {epsilons.ad_server:.3g} "
        f"({epsilons.colluding:.3g} with one helper) at delta {plan.task.delta:.2g}"
    )


def epsilons_of_federated(plan: FederatedPlan, rounds: int) -> Epsilons:
    """Return what rounds of a federated job cost a person at the task's delta, not counting other jobs."""
    return spent(plan.job.charges(plan.task, rounds), plan.task.delta)


def privacy_line_of_federated(plan: FederatedPlan, rounds: int) -> str:
    """Describe in one line what rounds of a federated job cost, also where devices' coins are known."""
    if plan.task.mechanism is Mechanism.NONE:
        return "no noise: no privacy"
    epsilons = epsilons_of_federated(plan, rounds)
    known = [replace(one, sampling_rate=1.0) for one in plan.job.charges(plan.task, rounds)]
    leaked = spent(known, plan.task.delta)
    return (
        f"epsilon {epsilons.ad_server:.3g} a person ({epsilons.colluding:.3g} with one helper) at delta "
        f"{plan.task.delta:.2g}; {leaked.colluding:.3g} if devices' coins leaked"
    )

"""What a job's rounds cost, as the ad server shows it.

The helpers' own ledgers decide; this repeats their sum for one job.
"""

from collections.abc import Sequence
from dataclasses import replace

from adserver.records.federated_plan import FederatedPlan
from adserver.records.training_plan import TrainingPlan
from maskedlark.privacy.accounting import Charge, Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism


def job_epsilons(plan: TrainingPlan | FederatedPlan, rounds: int) -> Epsilons:
    """Return what so many rounds of a job cost at the task's delta, not counting other jobs.

    Of a federated job that is what they cost a person. Infinite without noise.
    """
    return spent(_charges(plan, rounds), plan.task.delta)


def job_epsilons_without_coins(plan: FederatedPlan, rounds: int) -> Epsilons:
    """Return what so many rounds of a federated job would cost if devices' coins were known.

    A coin that is known hides nobody: each round costs as if all devices took part in it.
    """
    known = [replace(one, sampling_rate=1.0) for one in _charges(plan, rounds)]
    return spent(known, plan.task.delta)


def privacy_line(plan: TrainingPlan | FederatedPlan, rounds: int) -> str:
    """Describe in one line what so many rounds cost; federated ones also if devices' coins are known.

    Where every device takes part in every round, coins tell nothing, and nothing is said of them.
    """
    if plan.task.mechanism is Mechanism.NONE:
        return "no noise: no privacy"
    epsilons = job_epsilons(plan, rounds)
    cost = f"{epsilons.colluding:.3g} against the ad server with one helper) at delta {plan.task.delta:.2g}"
    if isinstance(plan, TrainingPlan):
        noise = f"{plan.task.mechanism} noise {plan.job.noise_multiplier:.3g}"
        return f"{noise}, epsilon {epsilons.ad_server:.3g} ({cost}"
    leaked = job_epsilons_without_coins(plan, rounds)
    if_leaked = (
        f"; {leaked.ad_server:.3g} ({leaked.colluding:.3g} with one helper) if devices' coins leaked"
        if leaked != epsilons
        else ""
    )
    return f"epsilon {epsilons.ad_server:.3g} a person ({cost}{if_leaked}"


def _charges(plan: TrainingPlan | FederatedPlan, rounds: int) -> Sequence[Charge]:
    if isinstance(plan, FederatedPlan):
        return plan.job.charges(plan.task, rounds)
    return [plan.job.charge(plan.task, rounds)] if rounds else []

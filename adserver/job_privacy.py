"""What a job's rounds cost, as the ad server shows it. The helpers' own ledgers decide; this repeats their sum for one job."""

from adserver.plan import TrainingPlan
from maskedlark.accounting import Charge, Epsilons, spent
from maskedlark.noise import Mechanism


def charge(plan: TrainingPlan, rounds: int) -> Charge:
    """The charge of so many of a job's rounds, at least one."""
    is_noisy = plan.task.mechanism is not Mechanism.NONE
    return Charge(
        mechanism=plan.task.mechanism,
        noise_multiplier=plan.job.noise_multiplier if is_noisy else 0.0,
        sampling_rate=plan.job.sampling_rate,
        rounds=rounds,
    )


def job_epsilons(plan: TrainingPlan, rounds: int) -> Epsilons:
    """What so many rounds of a job cost at the task's delta, other jobs on the dataset left out; infinite without noise."""
    return spent([charge(plan, rounds)] if rounds else [], plan.task.delta)


def privacy_line(plan: TrainingPlan, rounds: int) -> str:
    """One line for people on what so many rounds cost."""
    if plan.task.mechanism is Mechanism.NONE:
        return "no noise: no privacy"
    epsilons = job_epsilons(plan, rounds)
    return (
        f"{plan.task.mechanism} noise {plan.job.noise_multiplier:.3g}, epsilon {epsilons.ad_server:.3g} "
        f"({epsilons.colluding:.3g} with one helper) at delta {plan.task.delta:.2g}"
    )


def curve_title(plan: TrainingPlan) -> str:
    """What stands above a job's curves; the epsilons are those of all its rounds."""
    job = plan.job
    return f"{plan.task.name} · {job.loss} · job {job.job_id.hex()[:8]}\n{privacy_line(plan, job.rounds)} · batch {plan.denominator:,.0f}"

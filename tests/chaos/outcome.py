"""What every part of chaos says about the jobs that it disturbed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsUnderFire:
    """What happened to jobs.

    Attributes:
        jobs: That were submitted.
        jobs_ended_once: Of these, those that are done, with each of their rounds taken once.
        rounds: Of each job.
        rounds_under_fire: Of all jobs, done before the last kill; the others followed it.
        kills: Processes killed.
        killed: The same, by what they were.
        seconds: How long it went on.
    """

    jobs: int
    jobs_ended_once: int
    rounds: int
    rounds_under_fire: int
    kills: int
    killed: dict[str, int]
    seconds: float

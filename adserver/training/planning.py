"""What fits a dataset's budgets, before anything is spent.

plan, room, compared = plan_job(engine, PlanRequest(model=encoded, wish=PlanConstraints(rounds=100)))
"""

import time
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import Engine

from adserver.budgets.comparison import Comparison, compare
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import OnProgress, Option, Plan, Planner
from adserver.budgets.reservations import Budgets
from adserver.records.submissions import PlanRequest
from adserver.store.datasets import DatasetStore
from adserver.store.tasks import TaskStore
from adserver.training.model_file import prepare_model
from maskedlark.errors import JobRefused
from maskedlark.model.exactness import why_general
from maskedlark.model.heads import check_trained, trained_loss
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task_kinds import LabelKind


class GeneralPath(NamedTuple):
    """What a model that trains on the general path costs: its samples are charged as public.

    Attributes:
        reasons: What forces it there.
        noise_factor: The noise of the recommended job over that of the same job with secret samples; None
            where no such job fits.
    """

    reasons: tuple[str, ...]
    noise_factor: float | None


class Planned(NamedTuple):
    """A plan, the room that it was found in, its job with either kind of noise, and its path if general."""

    plan: Plan
    room: JobLimits
    compared: Comparison | None = None
    general: GeneralPath | None = None


def plan_job(engine: Engine, asked: PlanRequest, progress: OnProgress | None = None) -> Planned:
    """Find what fits beside all that is held on a dataset. It spends nothing.

    The job is recommended with the kind of noise that is worth more, unless the samples are public.
    The samples of a model on the general path are charged as public, whatever is asked.

    Raises:
        InvalidModel, InvalidTask, JobRefused: what is wrong, or that nothing fits.
    """
    dataset = DatasetStore(engine).find(asked.dataset)
    task = TaskStore(engine).find(dataset.task_id.hex()).bundle.task
    encoder = TaskStore(engine).encoder(task.task_id)
    parsed = prepare_model(asked.model, num_features=task.num_features, encoder=encoder).parsed
    loss = None if asked.loss is None else trained_loss(asked.loss)
    if loss is not None:
        classes = task.labels.size if task.labels.kind is LabelKind.CLASSES else None
        check_trained(parsed, loss, classes)
    reasons = why_general(parsed, loss)
    sampling = asked.sampling() | ({"is_sample_public": True} if reasons else {})
    room = JobLimits(
        task=task,
        dataset_size=dataset.size,
        already=Budgets(engine=engine, clock=time.time).held(dataset),
        epsilon=asked.epsilon,
        momentum=asked.momentum,
        **sampling,
    )
    planner = Planner(room=room, num_parameters=parsed.num_parameters, gradient_norm=asked.gradient_norm)
    found = planner.plan(asked.wish) if progress is None else planner.plan(asked.wish, progress)
    compared = compare(planner, found.recommended)
    # A model on the general path needs public samples, and has no correlated noise.
    if compared is not None and compared.better is not None and not sampling["is_sample_public"]:
        found = found.recommending(compared.better)
    general = GeneralPath(reasons, _noise_factor(room, found.recommended)) if reasons else None
    return Planned(found, room, compared, general)


def _noise_factor(room: JobLimits, job: Option) -> float | None:
    """Return a job's noise with public samples over that with secret ones."""
    if room.task.mechanism is Mechanism.NONE:
        return None
    try:
        public, secret = (
            replace(room, is_sample_public=is_public, noise=StepNoise.INDEPENDENT, carried=None).noise_for(
                rounds=job.rounds, batch_size=job.batch_size
            )
            for is_public in (True, False)
        )
    except JobRefused:
        return None
    return public / secret

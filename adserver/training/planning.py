"""What fits a dataset's budgets, before anything is spent.

plan, room, compared = plan_job(engine, PlanRequest(model=encoded, wish=PlanConstraints(rounds=100)))
"""

import time
from typing import NamedTuple

from sqlalchemy import Engine

from adserver.budgets.comparison import Comparison, compare
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import OnProgress, Plan, Planner
from adserver.budgets.reservations import Budgets
from adserver.records.submissions import PlanRequest
from adserver.store.datasets import DatasetStore
from adserver.store.tasks import TaskStore
from adserver.training.merged_parameters import separate_parameters
from adserver.training.vocabulary import check_vocabulary
from maskedlark.model.heads import check_trained, trained_loss
from maskedlark.model.onnx_file import parse
from maskedlark.reports.task_kinds import LabelKind


class Planned(NamedTuple):
    """A plan, the room that it was found in, and its job with either kind of noise."""

    plan: Plan
    room: JobLimits
    compared: Comparison | None = None


def plan_job(engine: Engine, asked: PlanRequest, progress: OnProgress | None = None) -> Planned:
    """Find what fits beside all that is held on a dataset. It spends nothing.

    The job is recommended with the kind of noise that is worth more, unless the samples are public.

    Raises:
        InvalidModel, InvalidTask, JobRefused: what is wrong, or that nothing fits.
    """
    dataset = DatasetStore(engine).find(asked.dataset)
    task = TaskStore(engine).find(dataset.task_id.hex()).bundle.task
    model = separate_parameters(asked.model)
    parsed = parse(model, num_features=task.num_features)
    if (encoder := TaskStore(engine).encoder(task.task_id)) is not None:
        check_vocabulary(model, encoder)
    if asked.loss is not None:
        classes = task.labels.size if task.labels.kind is LabelKind.CLASSES else None
        check_trained(parsed, trained_loss(asked.loss), classes)
    room = JobLimits(
        task=task,
        dataset_size=dataset.size,
        already=Budgets(engine=engine, clock=time.time).held(dataset),
        epsilon=asked.epsilon,
        momentum=asked.momentum,
        **asked.sampling(),
    )
    planner = Planner(room=room, num_parameters=parsed.num_parameters, gradient_norm=asked.gradient_norm)
    found = planner.plan(asked.wish) if progress is None else planner.plan(asked.wish, progress)
    compared = compare(planner, found.recommended)
    # A model on the general path needs public samples, and has no correlated noise.
    if compared is not None and compared.better is not None and not asked.is_sample_public:
        found = found.recommending(compared.better)
    return Planned(found, room, compared)

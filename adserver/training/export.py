"""A trained model leaves the ad server.

The latest checkpoint's weights in the ONNX file that was submitted.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from adserver.records.federated_plan import FederatedPlan
from adserver.records.training_plan import TrainingPlan
from adserver.store.job_folder import JobFolder
from adserver.training.forward import predict
from adserver.training.trainer import Checkpoint
from maskedlark.errors import JobReason, JobRefused
from maskedlark.federated.strategy import ServerState
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.randomness import seeded
from maskedlark.releases.instructions import read_instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A model and how far it was trained.

    Attributes:
        encoded: An ONNX file.
        rounds_done: Rounds whose steps are in it.
    """

    encoded: bytes = field(repr=False)
    rounds_done: int


def export_model(folder: JobFolder, plan: TrainingPlan) -> ExportedModel:
    """The latest float32 weights of a job in any state, as a file that onnxruntime was seen to run.

    Raises:
        JobRefused(WRONG_STATE): no round is done yet.
        InvalidModel: onnxruntime cannot run the file.
    """
    stored = folder.checkpoint()
    if stored is None:
        raise JobRefused(
            JobReason.WRONG_STATE, "the job has not finished a round yet: there is nothing to export"
        )
    checkpoint = Checkpoint.decode(stored)
    submitted = folder.model()
    model = parse(submitted, num_features=plan.task.num_features)
    encoded = replace_parameters(submitted, model, checkpoint.values())
    predict(encoded, np.zeros((1, plan.task.num_features), np.uint8))
    return ExportedModel(encoded=encoded, rounds_done=checkpoint.rounds_done)


def export_federated(folder: JobFolder, plan: FederatedPlan) -> ExportedModel:
    """The model of a federated job after its latest round, as an ONNX file of a dense network.

    The file takes features as bytes over 256, as all models of this product do; devices divide them by 255,
    which the first layer's weights make up for.
    """
    strategy, model = read_instructions(plan.job)
    stored = folder.checkpoint()
    first = strategy.start(model.initial(seeded(plan.seed, "first weights")))
    state = first if stored is None else ServerState.decode(stored)
    values, start = [], 0
    for index, (fan_in, width) in enumerate(pairwise(model.widths)):
        middle, end = start + fan_in * width, start + (fan_in + 1) * width
        scale = np.float32(256 / 255 if index == 0 else 1)
        values += [
            state.parameters[start:middle].reshape(fan_in, width).T * scale,
            state.parameters[middle:end],
        ]
        start = end
    encoded = folder.model()
    parsed = parse(encoded, num_features=model.widths[0])
    return ExportedModel(
        encoded=replace_parameters(encoded, parsed, tuple(values)), rounds_done=state.rounds_done
    )

"""A trained model leaves the ad server.

The latest checkpoint's weights in the ONNX file that was submitted.
"""

from dataclasses import dataclass, field

import numpy as np

from adserver.records.training_plan import TrainingPlan
from adserver.store.job_folder import JobFolder
from adserver.training.forward import predict
from adserver.training.trainer import Checkpoint
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.onnx_file import parse, replace_parameters


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

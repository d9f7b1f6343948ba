"""A trained model leaves the ad server.

Weights of the latest checkpoint in the ONNX file that was submitted: those after its last round, or those
that did best on the job's evaluation set.
"""

import numpy as np
from numpy.typing import NDArray

from adserver.records.exported_model import ExportedModel, InputForm, ModelWeights
from adserver.records.federated_plan import FederatedPlan
from adserver.records.local_plan import LocalPlan
from adserver.records.scored_loss import scored_loss
from adserver.records.training_plan import TrainingPlan
from adserver.store.job_files import JobFiles
from adserver.training.any_records import take_any_records
from adserver.training.federated.model import first_parameters, write_dense_file, write_trained_file
from adserver.training.inference import check_loads, predict
from adserver.training.pipeline import (
    ENCODER_IS,
    INPUT_IS,
    LOSS_IS,
    SCALED,
    describe,
    from_bytes,
    from_columns,
)
from adserver.training.trainer import BestWeights, Checkpoint, Masters
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.federated.strategy import ServerState
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.releases.instructions import read_instructions
from maskedlark.reports.task import Task


def export_job(
    folder: JobFiles, plan: TrainingPlan | FederatedPlan, weights: ModelWeights = ModelWeights.LATEST
) -> ExportedModel:
    """Export float32 weights of a job in any state, as an ONNX file that takes bytes over 256.

    Raises:
        JobRefused(WRONG_STATE): no round over a dataset is done yet, or the job's files were deleted; or the
            best weights are asked for and none was evaluated.
        InvalidModel: onnxruntime cannot run the file.
    """
    if isinstance(plan, FederatedPlan):
        return _export_federated(folder, plan, weights)
    return _export_training(folder, plan, weights)


def _export_training(folder: JobFiles, plan: TrainingPlan, weights: ModelWeights) -> ExportedModel:
    submitted, stored = folder.model(), folder.checkpoint()
    if stored is None:
        raise JobRefused(
            JobReason.WRONG_STATE,
            "the job has not finished a round yet, so it has no model to export: wait for its first round",
        )
    checkpoint = Checkpoint.decode(stored)
    model = parse(submitted, num_features=plan.task.num_features, trained=plan.job.trained)
    masters, rounds_done = _weights(checkpoint, weights)
    encoded = take_any_records(replace_parameters(submitted, model, masters))
    # Run once, since a file that onnxruntime loads may still fail at its first record.
    predict(encoded, np.zeros((1, plan.task.num_features), np.uint8))
    # Several heads have no one loss that tells a reader what an output means.
    loss = scored_loss(plan.job.loss, model.output_width)
    told = {} if isinstance(loss, Heads) else {LOSS_IS: loss.value}
    return ExportedModel(encoded=describe(encoded, **_notes(plan.task), **told), rounds_done=rounds_done)


def _export_federated(folder: JobFiles, plan: FederatedPlan, weights: ModelWeights) -> ExportedModel:
    strategy, _ = read_instructions(plan.job)
    stored, file = folder.checkpoint(), folder.model()
    # Without a checkpoint the model is the one that round 0 sends to devices.
    state = strategy.start(first_parameters(plan, file)) if stored is None else ServerState.decode(stored)
    parameters, rounds_done = state.parameters, state.rounds_done
    if weights is ModelWeights.BEST:
        best = _require_best(None if stored is None else BestWeights.decode(stored))
        parameters, rounds_done = best.masters[0], best.rounds_done
    trained = take_any_records(write_trained_file(plan, file, parameters))
    notes = {**_notes(plan.task), LOSS_IS: Loss.CROSS_ENTROPY.value}
    return ExportedModel(encoded=describe(trained, **notes), rounds_done=rounds_done)


def export_local(plan: LocalPlan, parameters: NDArray[np.float64], rounds_done: int) -> ExportedModel:
    """Export the model of a job without helpers, as an ONNX file that takes bytes over 256."""
    encoded = write_dense_file(plan.local.widths, parameters.astype(np.float32))
    notes = {INPUT_IS: SCALED, LOSS_IS: Loss.CROSS_ENTROPY.value}
    return ExportedModel(encoded=describe(encoded, **notes), rounds_done=rounds_done)


def with_input(
    exported: ExportedModel,
    plan: TrainingPlan | FederatedPlan | LocalPlan,
    form: InputForm,
    encoder: Encoder | None,
) -> ExportedModel:
    """Return the model with another input: raw columns, or bytes.

    Args:
        exported: The model, whose input is bytes over 256.
        plan: Its job's.
        form: What the graph is to take.
        encoder: Of the columns.

    Raises:
        InvalidTask: columns are wanted, and there is no encoder, or it is not the one of the task.
        InvalidModel: onnxruntime does not load the graph.
    """
    match form:
        case InputForm.SCALED:
            return exported
        case InputForm.BYTES:
            width = plan.local.widths[0] if isinstance(plan, LocalPlan) else plan.task.num_features
            encoded = from_bytes(exported.encoded, width)
        case InputForm.COLUMNS:
            if encoder is None:
                raise InvalidTask(
                    "the job names no encoder: give the encoder file that made its features with --encoder"
                )
            # A task that names no encoder does not say who makes its features: any may be given.
            if plan.task is not None and plan.task.encoder not in (None, encoder.digest):
                raise InvalidTask(
                    "the encoder's digest differs from the task's: give the encoder file that the task names"
                )
            encoded = from_columns(exported.encoded, encoder)
    check_loads(encoded)
    return ExportedModel(encoded=encoded, rounds_done=exported.rounds_done)


def _weights(checkpoint: Checkpoint, weights: ModelWeights) -> tuple[Masters, int]:
    """Return a job's weights, and after how many rounds they are."""
    match weights:
        case ModelWeights.LATEST:
            return checkpoint.values(), checkpoint.rounds_done
        case ModelWeights.BEST:
            best = _require_best(checkpoint.best)
            return best.masters, best.rounds_done


def _require_best(best: BestWeights | None) -> BestWeights:
    if best is None:
        raise JobRefused(
            JobReason.WRONG_STATE,
            "the job has not been evaluated, so none of its weights are known to be the best: export "
            "the latest ones, or submit the job with --eval-set",
        )
    return best


def _notes(task: Task) -> dict[str, str]:
    """Return the metadata of an exported file."""
    named = {} if task.encoder is None else {ENCODER_IS: task.encoder.hex()}
    return {INPUT_IS: SCALED, "maskedlark.task": task.task_id.hex(), **named}

"""The model of a federated job as the ad server handles it: a dense network, or any ONNX graph.

    model, file = read_submitted_model(encoded, widths, task, seed=0)       # at submission
    first_parameters(plan, file)                                            # what round 0 trains from
    write_trained_file(plan, file, parameters)                              # what is exported
    scores(plan, file, parameters, held)                                    # an evaluation

Neither takes torch: a graph is trained by devices, and evaluated by onnxruntime.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adserver.records.federated_plan import FederatedPlan
from adserver.training.eval_set import EvalSet
from adserver.training.inference import Evaluation, evaluate
from adserver.training.model_file import prepare_model, require_fitting_loss
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.local_training import Parameters
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss, check_loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.randomness import seeded
from maskedlark.releases.instructions import read_instructions
from maskedlark.reports.task import Task


class _Submitted(NamedTuple):
    """A model that devices are to train.

    Attributes:
        model: The definition that devices receive.
        file: The ONNX file that is kept with the job.
    """

    model: DenseModel | GraphModel
    file: bytes

    def initial_parameters(self, *, seed: int) -> Parameters:
        """Return the initial weights: a graph's own, or a dense network's from the seed."""
        if isinstance(self.model, DenseModel):
            return self.model.initial(seeded(seed, "first weights"))
        return np.concatenate([value.ravel() for value in _parse(self.model, self.file).initial_values])


def read_submitted_model(
    encoded: bytes | None,
    widths: tuple[int, ...],
    task: Task,
    *,
    seed: int,
    encoder: Encoder | None = None,
) -> _Submitted:
    """Return the model of a submission: an ONNX file, or the widths of a dense network.

    Args:
        encoded: The ONNX file, or None.
        widths: The dense network's, or empty.
        task: Its task.
        seed: Of the dense network's weights.
        encoder: The task's, whose words the file's tables are checked against; None: they are not.

    Raises:
        InvalidTask: both are given, or neither.
        InvalidModel: as `prepare_model`, or it is too large for a job.
    """
    if (encoded is None) == (not widths):
        raise InvalidTask(
            "expected exactly one model: give either the widths of a dense network or an ONNX file"
        )
    if encoded is None:
        return _Submitted(DenseModel(widths=widths), dense_network(widths, "relu", seed=seed))
    file, parsed = prepare_model(encoded, num_features=task.num_features, encoder=encoder)
    check_loss(parsed, Loss.CROSS_ENTROPY, task.labels.size)
    require_fitting_loss(parsed, Loss.CROSS_ENTROPY)
    # Devices get the weights with each round: in the definition zeros pack to almost nothing.
    zeros = tuple(np.zeros_like(value) for value in parsed.initial_values)
    model = GraphModel.of_file(
        replace_parameters(file, parsed, zeros),
        widths=(task.num_features, parsed.output_width),
        layer_sizes=tuple(parameter.size for parameter in parsed.parameters),
    )
    return _Submitted(model, file)


def first_parameters(plan: FederatedPlan, file: bytes) -> Parameters:
    """Return the initial weights of a stored job."""
    return _Submitted(read_instructions(plan.job).model, file).initial_parameters(seed=plan.seed)


def write_trained_file(plan: FederatedPlan, file: bytes, parameters: Parameters) -> bytes:
    """Write these weights into the job's ONNX file, which takes features as bytes over 256."""
    _, model = read_instructions(plan.job)
    if isinstance(model, GraphModel):
        return _with_parameters(model, file, parameters)
    return _with_dense_parameters(model.widths, file, parameters)


def write_dense_file(widths: tuple[int, ...], parameters: Parameters) -> bytes:
    """Write a dense network with these weights, of one layer or more, as `write_trained_file` does."""
    return _with_dense_parameters(widths, dense_network(widths, "relu", seed=0), parameters)


def scores(plan: FederatedPlan, file: bytes, parameters: Parameters, held: EvalSet) -> Evaluation:
    """Evaluate weights on the ad server's own examples."""
    _, model = read_instructions(plan.job)
    labels = held.labels.astype(np.int64)
    if isinstance(model, GraphModel):
        trained = _with_parameters(model, file, parameters)
        return evaluate(trained, held.features, labels, Loss.CROSS_ENTROPY)
    outputs = model.logits(parameters, held.features.astype(np.uint8, copy=False))
    return Evaluation.of(outputs.astype(np.float64), labels, Loss.CROSS_ENTROPY)


def _with_dense_parameters(widths: tuple[int, ...], file: bytes, parameters: Parameters) -> bytes:
    """Devices divide features by 255, the file's are over 256: the first layer's weights make up for it."""
    values: list[NDArray[np.float32]] = []
    start = 0
    for index, (fan_in, width) in enumerate(pairwise(widths)):
        middle, end = start + fan_in * width, start + (fan_in + 1) * width
        scale = np.float32(256 / 255 if index == 0 else 1)
        values += [parameters[start:middle].reshape(fan_in, width).T * scale, parameters[middle:end]]
        start = end
    return replace_parameters(file, parse(file, num_features=widths[0]), tuple(values))


def _parse(model: GraphModel, file: bytes) -> Model:
    return parse(file, num_features=model.widths[0])


def _with_parameters(model: GraphModel, file: bytes, parameters: Parameters) -> bytes:
    parsed = _parse(model, file)
    parts = np.split(parameters, np.cumsum(model.layer_sizes)[:-1])
    values = tuple(part.reshape(one.shape) for part, one in zip(parts, parsed.parameters, strict=True))
    return replace_parameters(file, parsed, values)

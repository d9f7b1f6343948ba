"""What trains on a device: plain numpy, or torch where the extra `torch` is installed.

    model = local_model(DenseModel(widths=(784, 10)), TrainerKind.NUMPY)

numpy is the default, and trains dense networks. torch trains ONNX graphs too. Either is behind the same
strategies: clipping, noise and cover do not depend on it. A device that cannot train a job's model says so
before it tosses a coin for its rounds.
"""

from functools import lru_cache

from browser_sim.kinds import TrainerKind
from maskedlark.errors import InvalidTask
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.local_training import LocalModel
from maskedlark.terminal.exit_status import how_to_install


def local_model(model: DenseModel | GraphModel, trainer: TrainerKind) -> LocalModel:
    """Return the model of a job, ready to be trained.

    Raises:
        InvalidTask: the job trains a graph, and the trainer is numpy; or torch is not installed.
        InvalidModel: the graph is not accepted.
    """
    if trainer is TrainerKind.NUMPY:
        if isinstance(model, DenseModel):
            return model
        raise InvalidTask("the job trains an ONNX graph, which requires torch: use --trainer torch")
    return _by_torch(model)


@lru_cache(maxsize=4)
def _by_torch(model: DenseModel | GraphModel) -> LocalModel:
    """Return the model in torch; a graph is checked once, not in each round."""
    try:
        from maskedlark.autodiff.torch_models import torch_model
    except ModuleNotFoundError as missing:
        told = how_to_install(missing.name or "torch", __name__, needs="--trainer torch")
        raise InvalidTask(told) from None
    return torch_model(model)

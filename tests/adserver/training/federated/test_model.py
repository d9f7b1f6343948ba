"""The model of a federated job is one that devices can train by its loss."""

from pathlib import Path

from torch import nn

from adserver.training.federated.model import read_submitted_model
from maskedlark.errors import ModelReason
from tests.federated_site import Site
from tests.refusals import refused
from tests.torch_models import export


def test_a_model_that_ends_with_a_softmax_is_refused(tmp_path: Path) -> None:
    task = Site(tmp_path).scene.task
    layer = nn.Linear(task.num_features, task.labels.size)
    read_submitted_model(export(layer, task.num_features, 2, dynamo=True), (), task, seed=0)
    squashed = export(nn.Sequential(layer, nn.Softmax(1)), task.num_features, 2, dynamo=True)
    with refused(ModelReason.WRONG_LOSS):
        read_submitted_model(squashed, (), task, seed=0)

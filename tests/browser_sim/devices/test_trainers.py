"""What trains on a device: numpy unless torch is asked for; jobs of graphs over real helpers."""

import sys
from pathlib import Path

import numpy as np
import pytest

from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_state import JobState
from adserver.store.rounds import DeviceRound
from adserver.training.export import export_job
from adserver.training.inference import predict
from browser_sim.devices.trainers import local_model
from browser_sim.kinds import TrainerKind
from maskedlark.autodiff.torch_models import torch_model
from maskedlark.errors import InvalidTask, ModelReason
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.strategy import ServerState
from maskedlark.model.onnx_file import parse
from maskedlark.releases.instructions import read_instructions
from maskedlark.reports.updates import UpdateForm
from tests.federated_site import ROUNDS, Site
from tests.maskedlark.autodiff.graph_files import dense_file
from tests.refusals import refused

FILE = dense_file(4, 3, 2)
PARAMETERS = 4 * 3 + 3 + 3 * 2 + 2
GRAPH = GraphModel(widths=(4, 2), layer_sizes=(12, 3, 6, 2), packed="")


def graph_site(folder: Path, trainer: TrainerKind = TrainerKind.TORCH) -> Site:
    return Site(folder, {"updates": UpdateForm(num_parameters=PARAMETERS)}, trainer=trainer)


def test_numpy_is_the_default_and_trains_the_dense_model_itself() -> None:
    model = DenseModel(widths=(4, 2))
    assert local_model(model, TrainerKind.NUMPY) is model


def test_numpy_refuses_a_graph_and_says_what_trains_it() -> None:
    with pytest.raises(InvalidTask, match="--trainer torch"):
        local_model(GRAPH, TrainerKind.NUMPY)


def test_without_torch_the_trainer_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "maskedlark.autodiff.torch_models", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidTask, match=r"--trainer torch needs it: pip install torch=="):
        local_model(DenseModel(widths=(4, 3, 3, 2)), TrainerKind.TORCH)  # of no other test: it is cached


def test_a_job_of_a_graph_trains_the_very_model_of_a_simulation(tmp_path: Path) -> None:
    site = graph_site(tmp_path)
    site.submit(widths=(), model=FILE)
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert isinstance(job.plan, FederatedPlan)
    _, model = read_instructions(job.plan.job)
    assert isinstance(model, GraphModel)
    trained = torch_model(model)
    first = np.concatenate([one.ravel() for one in parse(FILE, num_features=4).initial_values])
    assert site.state() == site.simulated(trained, first)
    found = export_job(site.files, job.plan)
    state = ServerState.decode(site.state() or b"")
    scored = predict(found.encoded, site.examples.features.astype(np.uint8))
    assert np.allclose(scored, trained.logits(state.parameters, site.examples.features), atol=1e-5)
    assert not (state.parameters == first).all()


def test_devices_without_torch_answer_no_round_of_a_graph(tmp_path: Path) -> None:
    site = graph_site(tmp_path, TrainerKind.NUMPY)
    site.submit(widths=(), model=FILE)
    refusals: list[str] = []

    def answer(stored: DeviceRound) -> None:
        try:
            site.devices_answer(stored)
        except InvalidTask as refusal:
            refusals.append(str(refusal))
            site.trainer = TrainerKind.TORCH

    assert site.run(answer).state is JobState.DONE
    assert len(refusals) == 1
    assert "torch" in refusals[0]


def test_a_graph_that_is_no_classifier_of_the_task_is_refused_at_submission(tmp_path: Path) -> None:
    site = graph_site(tmp_path)
    with refused(ModelReason.WRONG_LOSS):
        site.submit(widths=(), model=dense_file(4, 3, 3))
    with pytest.raises(InvalidTask, match="either"):
        site.submit(model=FILE)
    assert site.store.all() == ()

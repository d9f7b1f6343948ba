import numpy as np
import pytest
import torch

from maskedlark.errors import InvalidModel
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import LocalTraining, TrainingSteps, batch_schedule
from maskedlark.federated.strategy import device_stream
from maskedlark.randomness import seeded
from tests.maskedlark.federated.federated_world import MODEL, examples


def test_the_gradient_is_autograds() -> None:
    parameters = MODEL.initial(seeded(3))
    batch = examples(9, 1)
    features = (batch.features / 255).astype(np.float32)
    ours = MODEL.mean_gradient(parameters[None], features[None], batch.labels[None])[0]
    weights = [
        torch.tensor(part.reshape(shape), requires_grad=True)
        for part, shape in zip(
            np.split(parameters, np.cumsum(MODEL.layer_sizes)[:-1]), [(6, 5), (5,), (5, 3), (3,)], strict=True
        )
    ]
    hidden = torch.relu(torch.tensor(features) @ weights[0] + weights[1])
    loss = torch.nn.functional.cross_entropy(hidden @ weights[2] + weights[3], torch.tensor(batch.labels))
    loss.backward()  # type: ignore[no-untyped-call]
    theirs = np.concatenate([weight.grad.numpy().ravel() for weight in weights if weight.grad is not None])
    assert np.abs(ours - theirs).max() < 1e-6
    assert MODEL.loss(parameters, batch) == pytest.approx(loss.item(), abs=1e-6)


def test_a_device_trains_to_the_same_bits_alone_and_among_others() -> None:
    stack = [examples(count, seed) for seed, count in enumerate((7, 1, 0, 12, 5))]
    local = LocalTraining(epochs=3, batch_size=4, learning_rate=0.5)
    parameters = MODEL.initial(seeded(1))

    def train(devices: range) -> np.ndarray:
        streams = [device_stream(9, 0, device) for device in devices]
        members = [stack[device] for device in devices]
        schedule = batch_schedule([len(one) for one in members], local, streams)
        return MODEL.train(
            parameters, members, TrainingSteps(schedule=schedule, learning_rate=0.5, proximal=0.1)
        )

    together = train(range(5))
    for device in range(5):
        assert (train(range(device, device + 1))[0] == together[device]).all()
    assert not together[2].any()


def test_a_schedule_holds_each_example_once_a_pass() -> None:
    schedule = batch_schedule([10, 3], LocalTraining(epochs=2, batch_size=4), [seeded(1), seeded(2)])
    assert schedule.shape == (2, 6, 4)
    for a_pass in (schedule[0, :3], schedule[0, 3:]):
        assert sorted(a_pass[a_pass >= 0]) == list(range(10))
    assert (schedule[1, 2:] == -1).all()


def test_training_separates_two_classes() -> None:
    model = DenseModel(widths=(2, 2))
    features = np.array([[0, 255], [255, 0]] * 20, np.uint8)
    data = examples(40).__class__(features=features, labels=np.array([0, 1] * 20))
    schedule = batch_schedule([40], LocalTraining(epochs=5, batch_size=8), [seeded(1)])
    trained = model.train(
        np.zeros(6, np.float32), [data], TrainingSteps(schedule=schedule, learning_rate=1.0)
    )[0]
    assert model.accuracy(trained, data) == 1.0


def test_a_model_without_two_widths_is_refused() -> None:
    with pytest.raises(InvalidModel):
        DenseModel(widths=(784,))

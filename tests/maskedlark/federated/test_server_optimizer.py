import numpy as np
import pytest
import torch

from maskedlark.federated.kinds import ServerOptimizerKind
from maskedlark.federated.server_optimizer import ServerOptimizer

UPDATES = np.random.default_rng(1).standard_normal((20, 4)) * [1.0, 0.1, 10.0, 0.0]


def run(optimizer: ServerOptimizer) -> np.ndarray:
    state = optimizer.start(np.ones(4))
    for update in UPDATES:
        state = optimizer.step(state, update)
    return state.masters


def test_averaging_adds_the_mean_update() -> None:
    assert run(ServerOptimizer()) == pytest.approx(1 + UPDATES.sum(axis=0))


def test_momentum_is_torchs() -> None:
    masters = torch.ones(4, dtype=torch.float64, requires_grad=True)
    peer = torch.optim.SGD([masters], lr=0.3, momentum=0.9)
    for update in UPDATES:
        masters.grad = torch.tensor(-update)
        peer.step()
    ours = run(ServerOptimizer(kind=ServerOptimizerKind.MOMENTUM, learning_rate=0.3))
    assert ours == pytest.approx(masters.detach().numpy())


@pytest.mark.parametrize("kind", [ServerOptimizerKind.ADAM, ServerOptimizerKind.YOGI])
def test_adaptive_steps_follow_the_published_recursion(kind: ServerOptimizerKind) -> None:
    masters, first, second = [1.0] * 4, [0.0] * 4, [1e-6] * 4
    for update in UPDATES:
        for i, value in enumerate(update):
            first[i] = 0.9 * first[i] + 0.1 * value
            if kind is ServerOptimizerKind.ADAM:
                second[i] = 0.99 * second[i] + 0.01 * value**2
            else:
                second[i] -= 0.01 * value**2 * np.sign(second[i] - value**2)
            masters[i] += 0.1 * first[i] / (np.sqrt(second[i]) + 1e-3)
    assert run(ServerOptimizer(kind=kind, learning_rate=0.1)) == pytest.approx(masters)


def test_adaptive_steps_do_not_depend_on_the_scale_of_updates() -> None:
    adam = ServerOptimizer(kind=ServerOptimizerKind.ADAM, learning_rate=0.1, tau=1e-9)
    small = adam.step(adam.start(np.zeros(1)), np.array([0.001]))
    large = adam.step(adam.start(np.zeros(1)), np.array([1000.0]))
    assert small.masters == pytest.approx(large.masters, rel=1e-3)

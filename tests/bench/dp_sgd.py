"""DP-SGD by Opacus at the same epsilon, delta, model, initial weights, optimizer, steps and expected batch.

One trusted curator, who sees
every record and label, adds one noise. What two helpers who see no label are compared with."""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import nn

from tests.bench.private_training import DELTA, MOMENTUM, Setup, load, score, untrained

_ACCOUNTANT: Final = "prv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOutcome:
    """The score, and the noise multiplier that Opacus's own accountant asks for."""

    score: float
    noise_multiplier: float


@lru_cache(maxsize=64)
def opacus_noise(epsilon: float, sampling_rate: float, rounds: int) -> float:
    """Opacus's noise multiplier for a budget."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: float = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=sampling_rate,
            steps=rounds,
            accountant=_ACCOUNTANT,
        )
    return found


def train_by_opacus(setup: Setup, epsilon: float, seed: int, clip_norm: float = 1.0) -> PeerOutcome:
    """Train with per-sample gradients, clipping and noise by Opacus, on Poisson samples, and test."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    data = load(setup, seed)
    features, labels = torch.from_numpy(data.features.astype(np.float32) / 256), torch.from_numpy(data.labels)
    expected = setup.batch_size or len(labels)
    rate = expected / len(labels)
    noise = opacus_noise(epsilon, rate, setup.rounds)
    draws = torch.Generator().manual_seed(seed)
    network = _network(setup, seed)
    module = GradSampleModule(network, loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=setup.learning_rate / clip_norm, momentum=MOMENTUM),
        noise_multiplier=noise,
        max_grad_norm=clip_norm,
        expected_batch_size=expected,
        generator=draws,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hooks on inputs that need no gradient
        for _ in range(setup.rounds):
            batch = torch.rand(len(labels), generator=draws) < rate
            optimizer.zero_grad()
            torch.autograd.backward(_loss(module(features[batch]), labels[batch]))
            optimizer.step()
    values = tuple(parameter.detach().numpy() for parameter in network.parameters())
    return PeerOutcome(score=score(setup, values, data), noise_multiplier=noise)


def _network(setup: Setup, seed: int) -> nn.Sequential:
    """The same dense ReLU network with the same initial weights."""
    layers: list[nn.Module] = []
    for wide, narrow in zip(setup.layers, setup.layers[1:], strict=False):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    for parameter, value in zip(network.parameters(), untrained(setup, seed).initial_values, strict=True):
        parameter.data = torch.from_numpy(value.copy())
    return network


def _loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())
    return nn.functional.cross_entropy(outputs, labels)

"""Every optimizer takes torch's steps, and the ad server trains without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer
from adserver.training.optimizers import fresh_moments, step

STEPS = 30
SHAPES = ((4, 3), (3,), ())


def torchs(settings: Optimizer, masters: list[torch.Tensor]) -> torch.optim.Optimizer:
    rate = settings.learning_rate
    match settings.kind:
        case OptimizerKind.SGD:
            return torch.optim.SGD(masters, lr=rate)
        case OptimizerKind.MOMENTUM:
            return torch.optim.SGD(masters, lr=rate, momentum=settings.momentum)
        case OptimizerKind.ADAM:
            return torch.optim.Adam(masters, lr=rate)
        case OptimizerKind.ADAGRAD:
            return torch.optim.Adagrad(masters, lr=rate)


@pytest.mark.parametrize("kind", OptimizerKind)
def test_every_step_is_torchs(kind: OptimizerKind) -> None:
    settings, draw = Optimizer(kind=kind, learning_rate=0.05, momentum=0.8), np.random.default_rng(3)
    masters = tuple(draw.normal(size=shape).astype(np.float32) for shape in SHAPES)
    masters = tuple(np.asarray(master, np.float32) for master in masters)
    theirs = [torch.tensor(master) for master in masters]
    moments, optimizer = fresh_moments(kind, masters), torchs(settings, theirs)
    for taken in range(STEPS):
        gradients = tuple(np.asarray(draw.normal(size=shape), np.float32) for shape in SHAPES)
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = torch.tensor(gradient)
        optimizer.step()
        step(settings, rate=0.05, steps_taken=taken, masters=masters, moments=moments, gradients=gradients)
        for ours, tensor in zip(masters, theirs, strict=True):
            np.testing.assert_allclose(ours, tensor.numpy(), rtol=2e-5, atol=2e-6)


def test_a_job_runs_without_torch() -> None:
    code = "import adserver.training.runner, adserver.training.export, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Checkpoints that torch wrote are read without torch, and only checkpoints are."""

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adserver.training.trainer import Checkpoint

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "momentum": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9),
    "adam": lambda tensors: torch.optim.Adam(tensors, lr=0.1),
    "adagrad": lambda tensors: torch.optim.Adagrad(tensors, lr=0.1),
}
MOMENTS = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
}


def saved(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def trained(kind: str) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn((3, 2), generator=draw), torch.randn(2, generator=draw)]
    optimizer: torch.optim.Optimizer = OPTIMIZERS[kind](tensors)
    for _ in range(3):
        for tensor in tensors:
            tensor.grad = torch.randn(tensor.shape, generator=draw)
        optimizer.step()
    return tensors, optimizer


def state(
    tensors: list[torch.Tensor], optimizer: torch.optim.Optimizer, **changes: object
) -> dict[str, object]:
    schedule = {"base_lrs": [0.1], "last_epoch": 3, "_step_count": 4, "lr_lambdas": [None]}
    base = {"rounds_done": 3, "masters": tensors, "optimizer": optimizer.state_dict(), "schedule": schedule}
    return {**base, "clip_share": 0.25, **changes}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_of_torch_is_read_to_the_bit(kind: str) -> None:
    tensors, optimizer = trained(kind)
    read = Checkpoint.decode(saved(state(tensors, optimizer)))
    assert (read.rounds_done, read.clip_share) == (3, 0.25)
    for ours, theirs in zip(read.masters, tensors, strict=True):
        assert ours.tobytes() == theirs.numpy().tobytes()
    kept = [[optimizer.state[tensor][name].numpy() for tensor in tensors] for name in MOMENTS[kind]]
    assert [[array.tobytes() for array in moment] for moment in read.moments] == [
        [array.tobytes() for array in moment] for moment in kept
    ]


def test_a_transposed_tensor_keeps_its_order() -> None:
    tensors, optimizer = trained("sgd")
    read = Checkpoint.decode(saved(state([tensors[0].T, tensors[1]], optimizer)))
    np.testing.assert_array_equal(read.masters[0], tensors[0].T.numpy())


def test_a_checkpoint_with_anything_else_in_it_is_not_unpickled() -> None:
    tensors, optimizer = trained("sgd")
    with pytest.raises(pickle.UnpicklingError, match="holds no"):
        Checkpoint.decode(saved(state(tensors, optimizer, schedule=Path("x"))))
    with pytest.raises(pickle.UnpicklingError, match="holds no"):
        Checkpoint.decode(saved(state([tensors[0].double()], optimizer)))


def test_reading_one_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(saved(state(*trained("adam"))))
    code = (
        "import sys; from pathlib import Path; from adserver.training.trainer import Checkpoint;"
        "Checkpoint.decode(Path(sys.argv[1]).read_bytes()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "old.pt")], check=False).returncode == 0

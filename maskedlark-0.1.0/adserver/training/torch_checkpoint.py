"""Reads checkpoints that earlier versions of the ad server wrote with torch, without torch.

Such a file is a zip archive: a pickle that names storages, and each storage's numbers. Only what a
checkpoint is made of is unpickled: dictionaries, lists, numbers and tensors of float32. A job that was half
done goes on from there.
"""

import pickle
from collections import OrderedDict
from io import BytesIO
from typing import Any, Final
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

MOMENTS: Final = (("momentum_buffer",), ("exp_avg", "exp_avg_sq"), ("sum",))
"""What torch's optimizers call their moments: SGD with momentum, Adam, Adagrad."""

Arrays = tuple[NDArray[np.float32], ...]


def is_torchs(stored: bytes) -> bool:
    """Whether torch wrote a checkpoint."""
    with ZipFile(BytesIO(stored)) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def state_of(stored: bytes) -> dict[str, Any]:
    """What was saved, with tensors as arrays.

    Raises:
        pickle.UnpicklingError: it holds anything that a checkpoint does not.
    """
    with ZipFile(BytesIO(stored)) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        state: dict[str, Any] = _Reader(archive, pickled.removesuffix("data.pkl")).load()
    return state


def moments_of(state: dict[str, Any]) -> tuple[Arrays, ...]:
    """The optimizer's moments, in the order of `optimizers`; none for plain SGD."""
    per_tensor: dict[int, dict[str, Any]] = state["optimizer"]["state"]
    for names in MOMENTS:
        if per_tensor and all(one.get(name) is not None for one in per_tensor.values() for name in names):
            return tuple(tuple(per_tensor[index][name] for index in sorted(per_tensor)) for name in names)
    return ()


class _Reader(pickle.Unpickler):
    """An unpickler that knows tensors and nothing else that is a class or a function."""

    def __init__(self, archive: ZipFile, folder: str) -> None:
        super().__init__(BytesIO(archive.read(f"{folder}data.pkl")))
        self._archive = archive
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch", "FloatStorage"): "float32",
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"a checkpoint holds no {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> NDArray[np.float32]:
        """A storage: its numbers lie in a file of their own."""
        _, kind, key, *_ = pid
        if kind != "float32":
            raise pickle.UnpicklingError("a checkpoint holds float32 numbers only")
        return np.frombuffer(self._archive.read(f"{self._folder}data/{int(key)}"), "<f4")


def _tensor(
    storage: NDArray[np.float32], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> NDArray[np.float32]:
    """A tensor of a part of a storage, copied."""
    size = storage.itemsize
    view = np.ndarray(
        shape, "<f4", storage.tobytes(), offset * size, tuple(size * stride for stride in strides)
    )
    return view.astype(np.float32)

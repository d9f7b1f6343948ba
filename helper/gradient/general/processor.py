"""A digest of this processor's float64 results, in the state that rounds run in.

torch and numpy choose loops by the processor's instructions, and loops of other widths add in another order:
with one version of torch, 16 of 100 dot products of 64 terms differ between AVX2 and AVX-512. So equal
versions do not imply that two helpers agree on the general path. `golden_digest` covers the bits of fixed
computations that depend on the loops, and the ad server refuses helpers whose digests differ before a round
is charged.
"""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from maskedlark.autodiff.one_thread import one_thread
from maskedlark.randomness import seeded

# Lengths of sums: below, at and between the widths of registers and the blocks of matrix products.
_SIZES: Final = (3, 8, 17, 64, 65, 257, 1000)
_ROWS: Final = (1, 5, 64)


@lru_cache(maxsize=1)
def golden_digest() -> bytes:
    """Return the SHA-256 over the bits of fixed computations, in the state that rounds run in.

    Equal at two helpers whose processors and libraries add in one order, as far as these computations show.
    """
    hasher = sha256(b"maskedlark/v1 general golden vectors\0")
    with one_thread():
        for result in _results():
            hasher.update(np.ascontiguousarray(result.detach().numpy()).tobytes())
    return hasher.digest()


def _results() -> Iterator[Tensor]:
    """Yield products, sums, convolutions and functions as in graphs of the general path."""
    for size in _SIZES:
        vector = _numbers("vector", size)
        yield torch.stack([vector.sum(), vector.mean(), (vector * vector).sum(), vector.var()])
        yield torch.softmax(vector, 0)
        yield torch.from_numpy(np.einsum("ij,ij->i", *2 * (_numbers("norms", 4, size).numpy(),)))
        for rows in _ROWS:
            batch, weights = _numbers("batch", rows, size), _numbers("weights", size, 7)
            yield batch @ weights
            yield torch.func.vmap(torch.mv, in_dims=(None, 0))(weights.T, batch)
            yield torch.func.vmap(torch.func.grad(_loss, argnums=1), in_dims=(0, None))(batch, weights)
    wide = _numbers("functions", 1003) * 4
    for function in (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.sin, functional.gelu):
        yield function(wide)
    yield torch.log(wide.abs() + 1e-3)
    yield torch.logaddexp(wide, torch.zeros_like(wide))
    image, kernel = _numbers("image", 2, 3, 13, 11), _numbers("kernel", 5, 3, 3, 3)
    yield functional.conv2d(image, kernel)
    yield functional.avg_pool2d(image, 3)
    yield wide * 1e-310  # zeros where subnormal numbers are flushed


def _loss(record: Tensor, weights: Tensor) -> Tensor:
    return torch.logsumexp(torch.tanh(record @ weights), 0)


def _numbers(name: str, *shape: int) -> Tensor:
    """Return fixed numbers between -1 and 1 with full mantissas."""
    words = np.frombuffer(seeded(0, f"golden {name}")(8 * int(np.prod(shape))), "<i8")
    return torch.from_numpy(words.astype(np.float64) / 2.0**63).reshape(shape)

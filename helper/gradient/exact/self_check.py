"""What a helper runs before it serves: both backends on extreme values, and the golden vectors on both.

It also compiles everything that a round needs, so that the first round is as fast as the others. The digest
goes into every round's transcript: helpers whose numerics differ derive different blinds, and can never mix.
"""

import base64
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.kernels.field import add_to
from helper.gradient.exact.kernels.scores import count_edges_up_to, first_largest
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.exact.products.product import CHUNK_RECORDS, Backend
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import MAX_MAGNITUDE, decode
from maskedlark.numbers.field import MODULUS, FieldVector, add, to_bytes
from maskedlark.privacy.clip import Clip, Norm

NUMERICS_DIGEST: Final = bytes.fromhex("d85fec63fa218afd705c11e45f4b34894eb8bf4f73ed2e95f44044673f8ff463")
"""SHA-256 over the golden vectors' results: the version of the exact path's numerics."""

_GOLDEN: Final = Path(__file__).with_name("golden.json")


class SelfCheckFailed(Exception):
    """This machine's arithmetic or this installation is not what the protocol's numerics need.

    The helper must not serve.
    """


def self_check(interrupt: Interrupt = never) -> bytes:
    """Check the exact path on this machine.

    Called by a helper when it starts; gives NUMERICS_DIGEST, for the transcript.

    Args:
        interrupt: Called before each golden vector.

    Raises:
        SelfCheckFailed: a product or a golden vector comes out wrong.
    """
    fast, portable = Int8Backend(), Float64Backend()
    check_backends(fast, portable)
    check_backends(
        Int8Backend(base_bits=7), portable
    )  # what another machine needs of the same compiled loops
    _check_sum_of_parts()
    _check_scores()
    # Read-only too: numba compiles each loop for either kind of array.
    for backend, is_read_only in ((portable, False), (fast, False), (fast, True)):
        digest = golden_digest(backend, is_read_only=is_read_only, interrupt=interrupt)
        if digest != NUMERICS_DIGEST:
            raise SelfCheckFailed(
                f"the golden vectors give {digest.hex()} on {type(backend).__name__}, not "
                f"{NUMERICS_DIGEST.hex()}"
            )
    return NUMERICS_DIGEST


def check_backends(first: Backend, second: Backend) -> None:
    """Compare both products of two backends on random and extreme values.

    Raises:
        SelfCheckFailed: they differ.
    """
    # Which values come does not matter: both backends get the same.
    rng = np.random.default_rng(0)
    # Odd sizes, and the longest chunk, whose sums are the largest.
    for rows, width, outputs in ((1, 1, 1), (3, 65, 17), (70, 300, 33), (CHUNK_RECORDS, 40, 3)):
        shape = (width, outputs)
        for fill in (
            _random_signs(rng),
            lambda shape: np.ones(shape, np.int64),
            lambda shape: -np.ones(shape, np.int64),
        ):
            weights = (fill(shape) * MAX_MAGNITUDE).astype(np.int16)
            for operand in (
                (fill((rows, width)) * 32767).astype(np.int16),
                np.full((rows, width), 255, np.uint8),
            ):
                factors = first.factor(weights), second.factor(weights)
                _require_equal("product", factors[0].product(operand), factors[1].product(operand))
                masked = _extreme_elements(rng, (rows, outputs))
                expected = _masked_sum(second, operand, masked, is_transposed=False)
                for backend, is_transposed in ((first, False), (first, True), (second, True)):
                    found = _masked_sum(backend, operand, masked, is_transposed=is_transposed)
                    _require_equal("masked sum", found, expected)


def _check_sum_of_parts() -> None:
    """Compare the compiled sum of two threads' parts with the plain one.

    Raises:
        SelfCheckFailed: they differ.
    """
    rng = np.random.default_rng(1)
    first, second = (_extreme_elements(rng, (1, 256))[0] for _ in range(2))
    expected = add(first, second)
    add_to(first, second)
    _require_equal("sum of parts", first, expected)


def _check_scores() -> None:
    """Compare the compiled bins and choices of an evaluation with numpy's.

    Raises:
        SelfCheckFailed: they differ.
    """
    outputs = np.random.default_rng(2).integers(-4, 5, (64, 5)).astype(np.float64)
    outputs[::7, 3] = np.nan
    for count in (0, 1, 2, 3, 8):
        edges, values = np.arange(count, dtype=np.float64) - np.float64(2), outputs[:, 3].copy()
        _require_equal("bin", count_edges_up_to(values, edges), np.searchsorted(edges, values, side="right"))
    _require_equal("choice", first_largest(outputs), outputs.argmax(1))


def _random_signs(rng: np.random.Generator) -> Callable[[tuple[int, int]], NDArray[np.int64]]:
    return lambda shape: rng.choice(np.array([-1, 0, 1]), shape)


def _extreme_elements(rng: np.random.Generator, shape: tuple[int, int]) -> FieldVector:
    """Draw elements at the edges of every digit and limb."""
    half = MODULUS // 2
    edges = [
        0,
        1,
        MODULUS - 1,
        half,
        half + 1,
        2**63 - 2**31,
        0x7F7F7F7F7F7F7F7F,
        0x7F7F7F7F7F7F7F80,
        2**32 - 1,
        2**44,
        2**22 - 1,
    ]
    return rng.choice(np.array(edges, np.uint64), shape)


def _masked_sum(
    backend: Backend, operand: NDArray[Any], masked: FieldVector, *, is_transposed: bool
) -> FieldVector:
    """Return the sum of two chunks, transposed if asked."""
    is_bytes = operand.dtype == np.uint8
    shape = operand.shape[1], masked.shape[1]
    total = np.zeros(shape[::-1], np.uint64).T if is_transposed else np.zeros(shape, np.uint64)
    accumulator = backend.accumulator(total, is_bytes=is_bytes, records=len(operand))
    for _ in range(2):  # the second chunk is added to a sum that is no longer zero
        accumulator.begin(len(operand))
        accumulator.put(0, operand, masked)
        accumulator.flush()
    return total


def _require_equal(what: str, first: NDArray[Any], second: NDArray[Any]) -> None:
    if not np.array_equal(first, second):
        raise SelfCheckFailed(f"two ways to a {what} of shape {first.shape} differ at extreme values")


@frozen
class _GoldenResult:
    """The result of one golden vector, and the expected one."""

    name: str
    aggregate_sha256: str
    values_digest: str
    is_right: bool


def _golden_results(
    backend: Backend, *, is_read_only: bool, interrupt: Interrupt = never
) -> list[_GoldenResult]:
    """Run every golden vector on a backend."""
    results = []
    for case in json.loads(_GOLDEN.read_text()):
        interrupt()
        results.append(_run(case, backend, is_read_only=is_read_only))
    return results


def golden_digest(backend: Backend, *, is_read_only: bool = False, interrupt: Interrupt = never) -> bytes:
    """Return the SHA-256 over the names and results of all golden vectors.

    Args:
        backend: How products are computed.
        is_read_only: Whether the batches' arrays are: numba compiles its loops for either.
        interrupt: Called before each of them.

    Raises:
        SelfCheckFailed: one differs from its file.
    """
    digest = sha256(b"maskedlark/v1 numerics\0")
    for result in _golden_results(backend, is_read_only=is_read_only, interrupt=interrupt):
        if not result.is_right:
            raise SelfCheckFailed(
                f"the golden vector {result.name!r} comes out wrong on {type(backend).__name__}"
            )
        digest.update(f"{result.name} {result.aggregate_sha256} {result.values_digest}\n".encode())
    return digest.digest()


def _run(case: dict[str, Any], backend: Backend, *, is_read_only: bool) -> _GoldenResult:
    features = np.array(case["features"], np.uint8)
    model = parse(base64.b64decode(case["onnx"]), num_features=features.shape[1])
    clip = Clip(norm=Norm(case["norm"]), bound=case["bound"], frac_bits=case["frac_bits"])
    shares = np.array([[int(share) for share in row] for row in case["mask_shares"]], np.uint64)
    batch = Batch(features=features, labels=np.array(case["labels"], np.uint32), mask_shares=shares)
    for array in (batch.features, batch.labels, batch.mask_shares) if is_read_only else ():
        array.flags.writeable = False
    weights = decode(base64.b64decode(case["weights"]), model.parameters)
    result = ExactEngine(model, Loss(case["loss"]), clip, backend=backend).masked_sum(weights, batch)
    aggregate, digest = sha256(to_bytes(result.vector)).hexdigest(), result.values_digest.hex()
    is_right = (aggregate, digest) == (case["aggregate_sha256"], case["values_digest"])
    return _GoldenResult(
        name=case["name"], aggregate_sha256=aggregate, values_digest=digest, is_right=is_right
    )

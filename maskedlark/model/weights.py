"""The weights of one round: 14-bit signed integers with one power-of-two exponent a tensor.

The ad server keeps float32 masters and sends these; a helper's gradient is of exactly these numbers. Fourteen
bits are two balanced base-128 digits, which the exact engine multiplies without rounding
(docs/spec/numerics.md).
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidModel, JobReason, JobRefused, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import Parameter

MAX_MAGNITUDE: Final = 8127  # 63 + 63 * 128
MIN_EXPONENT: Final = -16
MAX_EXPONENT: Final = 48
_MAGNITUDE_BITS: Final = 13


@frozen
class QuantisedTensor:
    """`values * 2^-exponent`; values are int16 of magnitude at most `MAX_MAGNITUDE`."""

    values: NDArray[np.int16]
    exponent: int

    def to_float(self) -> NDArray[np.float64]:
        """Return the exact reals."""
        return np.ldexp(self.values.astype(np.float64), -self.exponent)


def quantise(tensor: NDArray[np.float32], name: str = "tensor") -> QuantisedTensor:
    """Round a tensor to the grid that its largest entry needs. Called by the ad server before each round.

    Edge cases: an all-zero tensor has the largest exponent; an entry too small for the grid becomes zero.

    Raises:
        InvalidModel(NOT_FINITE): an entry is NaN, infinite or above 2^29.
    """
    largest = float(np.abs(tensor).max(initial=0.0))
    if not largest < 2.0 ** (_MAGNITUDE_BITS - MIN_EXPONENT):  # also false for NaN
        raise InvalidModel(ModelReason.NOT_FINITE, f"{name} holds a value that is not finite or above 2^29")
    exponent = (
        MAX_EXPONENT if largest == 0.0 else min(MAX_EXPONENT, _MAGNITUDE_BITS - int(np.frexp(largest)[1]))
    )
    # Scaled, the largest is below 2^13 = 8192, and two digits reach 8127: what lies between is cut.
    # In float64, where scaling by a power of two and rounding are exact on every machine.
    grid = np.rint(np.ldexp(tensor.astype(np.float64), exponent))
    return QuantisedTensor(
        values=grid.clip(-MAX_MAGNITUDE, MAX_MAGNITUDE).astype(np.int16), exponent=exponent
    )


def encode(weights: Sequence[QuantisedTensor]) -> bytes:
    """Encode the wire form, little-endian, in C order.

    For each tensor one signed byte of exponent and its int16 entries.
    """
    return b"".join(
        w.exponent.to_bytes(1, "little", signed=True) + w.values.astype("<i2").tobytes() for w in weights
    )


def length_in_bytes(parameters: Sequence[Parameter]) -> int:
    """Return the length of `encode`'s result, in bytes."""
    return sum(1 + 2 * parameter.size for parameter in parameters)


def decode(encoded: bytes, parameters: Sequence[Parameter]) -> tuple[QuantisedTensor, ...]:
    """Parse one round's weights. Called by a helper.

    Raises:
        JobRefused(MALFORMED): the length, an exponent or a value is outside the format.
    """
    if len(encoded) != length_in_bytes(parameters):
        raise JobRefused(
            JobReason.MALFORMED,
            f"weights have {len(encoded)} bytes, the model needs {length_in_bytes(parameters)}",
        )
    tensors = []
    offset = 0
    for parameter in parameters:
        exponent = int.from_bytes(encoded[offset : offset + 1], "little", signed=True)
        found = np.frombuffer(encoded, dtype="<i2", count=parameter.size, offset=offset + 1)
        values = found.astype(np.int16).reshape(parameter.shape)
        offset += 1 + found.nbytes
        if not MIN_EXPONENT <= exponent <= MAX_EXPONENT:
            raise JobRefused(JobReason.MALFORMED, f"weights of {parameter.name!r} have exponent {exponent}")
        # As Python's integers: the magnitude of -2^15 is no int16.
        if max(int(values.max(initial=0)), -int(values.min(initial=0))) > MAX_MAGNITUDE:
            raise JobRefused(JobReason.MALFORMED, f"weights of {parameter.name!r} exceed {MAX_MAGNITUDE}")
        tensors.append(QuantisedTensor(values=values, exponent=exponent))
    return tuple(tensors)


def digest(encoded: bytes) -> bytes:
    """Return the SHA-256 of the wire form, for the round's transcript."""
    # Prefixed, so that no other digest of the protocol is ever of the same bytes.
    return sha256(b"maskedlark/v1 weights\0" + encoded).digest()

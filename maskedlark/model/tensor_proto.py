"""One ONNX tensor as a numpy array, from memory only.

onnx's own reader follows a tensor's path into the file system and trusts its shape; this one does neither.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np
import onnx

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import Constant
from maskedlark.model.limits import Limits


@frozen
class _Encoding:
    """How one data type is stored, and what it becomes here."""

    stored: np.dtype[np.generic]
    field: str
    kept: np.dtype[np.generic]


_ENCODINGS: Final[Mapping[int, _Encoding]] = {
    onnx.TensorProto.FLOAT: _Encoding(stored=np.dtype("<f4"), field="float_data", kept=np.dtype(np.float32)),
    onnx.TensorProto.DOUBLE: _Encoding(
        stored=np.dtype("<f8"), field="double_data", kept=np.dtype(np.float64)
    ),
    onnx.TensorProto.INT32: _Encoding(stored=np.dtype("<i4"), field="int32_data", kept=np.dtype(np.int64)),
    onnx.TensorProto.INT64: _Encoding(stored=np.dtype("<i8"), field="int64_data", kept=np.dtype(np.int64)),
    onnx.TensorProto.BOOL: _Encoding(stored=np.dtype("u1"), field="int32_data", kept=np.dtype(np.bool_)),
}
_TYPED_FIELDS: Final = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


def to_array(tensor: onnx.TensorProto, limits: Limits) -> Constant:
    """Return a tensor's values, C order: float32, float64, int64 (int32 is widened) or bool.

    Raises:
        InvalidModel: EXTERNAL_DATA; TOO_LARGE (rank or size); NOT_FINITE; WRONG_SHAPE (a type that is not
            supported, a negative dimension, or contents that do not fill the shape exactly).
    """
    name = tensor.name[:80]
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise InvalidModel(
            ModelReason.EXTERNAL_DATA,
            f"tensor {name!r} lives in another file: export with external_data=False",
        )
    encoding = _ENCODINGS.get(tensor.data_type)
    if encoding is None or tensor.HasField("segment"):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"tensor {name!r} has data type {tensor.data_type}: use float32, int64 or bool",
        )
    shape = _shape(tensor, limits)
    flat = _contents(tensor, encoding, prod(shape))
    # One infinite weight would make every gradient no number, for which no clip holds.
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise InvalidModel(ModelReason.NOT_FINITE, f"tensor {name!r} holds a value that is not finite")
    return flat.astype(encoding.kept).reshape(shape)


def _shape(tensor: onnx.TensorProto, limits: Limits) -> tuple[int, ...]:
    name = tensor.name[:80]
    if len(tensor.dims) > limits.max_rank:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"tensor {name!r} has {len(tensor.dims)} axes, the limit is {limits.max_rank}",
        )
    shape = tuple(tensor.dims)
    if any(dimension < 0 for dimension in shape):
        raise InvalidModel(ModelReason.WRONG_SHAPE, f"tensor {name!r} has a negative dimension")
    # Raw bytes are viewed as they are; entries listed one by one are read by a loop.
    is_raw = tensor.data_type == onnx.TensorProto.FLOAT and tensor.HasField("raw_data")
    most = limits.max_parameters if is_raw else limits.max_elements
    # Each axis too: the product of an empty tensor is 0, whatever its other axes are.
    if prod(shape) > most or max(shape, default=0) > most:
        raise InvalidModel(
            ModelReason.TOO_LARGE, f"tensor {name!r} has {prod(shape)} entries, the limit is {most}"
        )
    return shape


def _contents(tensor: onnx.TensorProto, encoding: _Encoding, count: int) -> Constant:
    """Return the flat values, after checking that exactly one field holds the right number of them."""
    raw = tensor.raw_data
    filled = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    if filled != ([] if raw or not count else [encoding.field]):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"tensor {tensor.name[:80]!r} does not hold its values in one field of its type",
        )
    found = len(getattr(tensor, encoding.field)) if filled else len(raw)
    wanted = count if filled else count * encoding.stored.itemsize
    if found != wanted:
        unit = "values" if filled else "bytes"
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"tensor {tensor.name[:80]!r} holds {found} {unit}, its shape needs {wanted}",
        )
    if not filled:
        return np.frombuffer(raw, encoding.stored)
    # int32_data can hold a bool of any size.
    wide = np.dtype(np.int64) if encoding.stored.kind in "iu" else encoding.stored
    return np.fromiter(getattr(tensor, encoding.field), dtype=wide, count=count)

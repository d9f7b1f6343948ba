"""A walk over the bytes of an ONNX file before protobuf decodes it.

A decoder turns each two-byte empty message into an object of 150 bytes: a 16 MiB file of empty nodes takes 3
seconds and 1.3 GB. So the fields are counted first, without building anything; and the features of ONNX that
are refused wherever they stand (other graphs, functions, files on disk, sparse tensors) are refused here, at
any depth.

Source: the protobuf wire format (protobuf.dev/programming-guides/encoding); the message types come from
onnx's own descriptors.
"""

from enum import Enum, auto
from functools import cache
from typing import Any, Final

import onnx

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.limits import Limits

_MAX_DEPTH: Final = 12  # a dimension of a value lies seven deep; a hostile file must not exhaust the stack
_ZIP: Final = b"PK\x03\x04"
_MAX_TEXT_BYTES: Final = 1 << 16
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

_CONTROL_FLOW: Final = (
    ModelReason.SUBGRAPH,
    "an attribute holds a graph: control flow (If, Loop, Scan) is not supported; torch writes an "
    "nn.EmbeddingBag so: use nn.Embedding and a sum or mean of its rows",
)
_SPARSE: Final = (
    ModelReason.UNSUPPORTED_ATTRIBUTE,
    "sparse tensors and initializers are not supported: store them dense",
)
_REFUSED: Final = {
    "onnx.AttributeProto.g": _CONTROL_FLOW,
    "onnx.AttributeProto.graphs": _CONTROL_FLOW,
    "onnx.ModelProto.training_info": (
        ModelReason.SUBGRAPH,
        "the file holds training graphs: export for inference",
    ),
    "onnx.ModelProto.functions": (
        ModelReason.UNKNOWN_OPERATOR,
        "the file defines functions: inline them before exporting",
    ),
    "onnx.TensorProto.external_data": (
        ModelReason.EXTERNAL_DATA,
        "a tensor lives in another file: export with external_data=False",
    ),
    "onnx.GraphProto.sparse_initializer": _SPARSE,
    "onnx.AttributeProto.sparse_tensor": _SPARSE,
    "onnx.AttributeProto.sparse_tensors": _SPARSE,
    "onnx.GraphProto.quantization_annotation": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        "quantised graphs are not supported: export in float32",
    ),
}
# Of as many bytes in memory as in the file. A packed integer is a byte in the file and eight in memory, so
# integers count as structure.
_CONTENTS: Final = frozenset(
    {"onnx.TensorProto.raw_data", "onnx.TensorProto.float_data", "onnx.TensorProto.double_data"}
)


class _Kind(Enum):
    """What the scan does with a length-delimited field."""

    MESSAGE = auto()
    CONTENTS = auto()
    TEXT = auto()
    OTHER = auto()


@frozen
class _Field:
    """One field of a message type."""

    kind: _Kind
    message: Any = None  # a protobuf descriptor, as everywhere below: untyped upstream
    refusal: tuple[ModelReason, str] | None = None


def scan(encoded: bytes, limits: Limits) -> None:
    """Check that decoding `encoded` is cheap and finds nothing that is refused everywhere.

    Guarantees: afterwards `onnx.ModelProto.FromString` allocates at most about `200 * max_fields + 8 *
        max_structure_bytes` bytes in addition to the tensors' contents, and reading any string of the result
        succeeds.

    Raises:
        InvalidModel: TOO_LARGE, NOT_ONNX, SUBGRAPH, EXTERNAL_DATA, UNKNOWN_OPERATOR or UNSUPPORTED_ATTRIBUTE.
    """
    if len(encoded) > limits.max_bytes:
        raise InvalidModel(
            ModelReason.TOO_LARGE, f"the file has {len(encoded)} bytes, the limit is {limits.max_bytes}"
        )
    if encoded.startswith(_ZIP):
        raise _reject_malformed("an archive, as torch.save writes: export the module by torch.onnx.export")
    scanner = _Scanner(encoded, limits)
    scanner.message(onnx.ModelProto.DESCRIPTOR, 0, len(encoded), _MAX_DEPTH)
    if len(encoded) - scanner.contents > limits.max_structure_bytes:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"the file has {len(encoded) - scanner.contents} bytes beside tensor contents, the limit is "
            f"{limits.max_structure_bytes}",
        )


@cache
def _fields(message: Any) -> dict[int, _Field]:
    """Return the fields of a message type, by number."""
    return {number: _field(field) for number, field in message.fields_by_number.items()}


def _field(field: Any) -> _Field:
    refusal = _REFUSED.get(field.full_name)
    if field.message_type is not None:
        return _Field(kind=_Kind.MESSAGE, message=field.message_type, refusal=refusal)
    if field.full_name in _CONTENTS:
        return _Field(kind=_Kind.CONTENTS)
    return _Field(kind=_Kind.TEXT if field.type == field.TYPE_STRING else _Kind.OTHER)


def _reject_malformed(what: str) -> InvalidModel:
    return InvalidModel(ModelReason.NOT_ONNX, f"not an ONNX file: {what}")


class _Scanner:
    """One pass over the bytes; counts fields and tensor contents as it goes."""

    __slots__ = ("_encoded", "_fields_left", "_limits", "contents")

    def __init__(self, encoded: bytes, limits: Limits) -> None:
        self._encoded = encoded
        self._limits = limits
        self._fields_left = limits.max_fields
        self.contents = 0

    def message(self, descriptor: Any, start: int, end: int, depth: int) -> None:
        """Walk one message, which fills [start, end)."""
        if depth == 0:
            raise InvalidModel(ModelReason.TOO_LARGE, f"messages nest deeper than {_MAX_DEPTH}")
        known = _fields(descriptor)
        position = start
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise InvalidModel(
                    ModelReason.TOO_LARGE, f"the file has more than {self._limits.max_fields} protobuf fields"
                )
            tag, position = self._varint(position, end)
            number, wire_type = tag >> 3, tag & 7
            if number == 0 or tag >> 32:
                raise _reject_malformed("a field number is out of range")
            if wire_type == _LENGTH:
                length, position = self._varint(position, end)
                if length > end - position:
                    raise _reject_malformed("a field is longer than what holds it")
                # Fields that onnx does not know are counted and passed over: decoding keeps them as bytes.
                field = known.get(number)
                if field is not None:
                    self._length_delimited(field, position, position + length, depth)
                position += length
            else:
                position = self._skip(wire_type, position, end)

    def _length_delimited(self, field: _Field, start: int, end: int, depth: int) -> None:
        if field.refusal is not None:
            raise InvalidModel(*field.refusal)
        if field.kind is _Kind.MESSAGE:
            self.message(field.message, start, end, depth - 1)
        elif field.kind is _Kind.CONTENTS:
            self.contents += end - start
        elif field.kind is _Kind.TEXT:
            self._text(start, end)

    def _text(self, start: int, end: int) -> None:
        """Check a string now: the decoder leaves strings unchecked until they are read."""
        if end - start > _MAX_TEXT_BYTES:
            raise InvalidModel(
                ModelReason.TOO_LARGE, f"a text has {end - start} bytes, the limit is {_MAX_TEXT_BYTES}"
            )
        try:
            self._encoded[start:end].decode()
        except UnicodeDecodeError:
            raise _reject_malformed("a text is not UTF-8") from None

    def _skip(self, wire_type: int, position: int, end: int) -> int:
        """Return the position after a field that is not length-delimited."""
        if wire_type == _VARINT:
            return self._varint(position, end)[1]
        # Groups, the other two types, are of an old protobuf: no message of onnx has one.
        if wire_type not in (_FIXED32, _FIXED64):
            raise _reject_malformed("a field has an unknown wire type")
        position += 4 if wire_type == _FIXED32 else 8
        if position > end:
            raise _reject_malformed("a field is cut short")
        return position

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Read an unsigned base-128 integer of at most ten bytes, and return the position after it."""
        value = 0
        # 64 bits in groups of 7: protobuf's decoders take no longer ones.
        for count in range(10):
            if position >= end:
                break
            byte = self._encoded[position]
            position += 1
            value |= (byte & 127) << (7 * count)
            if byte < 128:
                return value, position
        raise _reject_malformed("an integer is cut short or too long")

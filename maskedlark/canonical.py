"""The bytes that several parties must agree on, built and parsed in exactly one place.

A canonical object is a frozen dataclass declared with `@canonical`; its bytes are JSON with sorted keys, no
spaces, ASCII only, byte strings in lower-case hex. `decode` accepts only what `encode` would have written, so
one object has one encoding and a digest names it. pydantic checks types, ranges and unknown or missing
fields; infinities and NaN are refused.

>>> @canonical
... class Point:
...     x: int
>>> encode(Point(x=3))
b'{"x":3}'
>>> decode(Point, b'{"x":3}')
Point(x=3)
"""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import sha256
from typing import Annotated, Any, Final, TypeVar, dataclass_transform, get_args

import pydantic
from annotated_types import Len
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from maskedlark.errors import InvalidTask, UnsupportedVersion

MAX_BYTES: Final = 64 * 1024

Bytes16 = Annotated[bytes, Len(16, 16)]
Bytes32 = Annotated[bytes, Len(32, 32)]
Bytes64 = Annotated[bytes, Len(64, 64)]

_T = TypeVar("_T")
# A state to copy: making one takes as long as hashing a kilobyte
_BEGUN: Final = sha256(b"maskedlark/v1 ")
_MOST_NAMED: Final = 5
_UNKNOWN: Final = "unexpected_keyword_argument"
_NUMBER: Final = re.compile("[0-9]+")
_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(pydantic.Field,))
def canonical(cls: type[_T]) -> type[_T]:
    """Declare a frozen, slotted, keyword-only dataclass.

    Its fields are checked, and its bytes are canonical.
    """
    # Strict: text or a float in the place of an integer is a caller's bug, and not converted.
    config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        val_json_bytes="hex",
        ser_json_bytes="hex",
    )
    checked: type[_T] = dataclass(frozen=True, slots=True, kw_only=True, config=config)(cls)  # type: ignore[assignment]
    return checked


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    # Kept: to build an adapter takes far longer than to parse an object by it.
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def encode(value: Any) -> bytes:
    """Return the canonical bytes of a canonical object."""
    plain = _adapter(type(value)).dump_python(value, mode="json")
    return json.dumps(
        plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def decode(cls: type[_T], encoded: bytes, *, max_bytes: int = MAX_BYTES) -> _T:
    """Parse canonical bytes from a peer.

    Raises:
        InvalidTask: too long, not JSON, an unknown or missing field, a value out of range, or not the
            canonical spelling.
        UnsupportedVersion: of a version that this software does not implement, whatever its other fields are.
    """
    if len(encoded) > max_bytes:
        raise InvalidTask(f"the {cls.__name__} has {len(encoded)} bytes, the limit is {max_bytes}")
    try:
        value: _T = _adapter(cls).validate_json(encoded)
    except ValidationError as error:
        _check_version(cls, error)
        raise InvalidTask(_explain(cls, error)) from None
    # pydantic also takes spaces, fields in any order and upper-case hex: one object must have one digest.
    if encode(value) != encoded:
        raise InvalidTask(f"the {cls.__name__} is not in its canonical spelling")
    return value


def build(cls: type[_T], settings: Any) -> _T:
    """Check settings from a person, and build a canonical object of them.

    Settings are a mapping of plain values, with byte strings as bytes.

    Raises:
        InvalidTask: naming the settings that are wrong, at most five, and why.
    """
    try:
        # Leniently: YAML and command lines give texts for enums and integers for floats.
        value: _T = _adapter(cls).validate_python(settings, strict=False)
    except ValidationError as error:
        raise InvalidTask(_explain(cls, error, most=_MOST_NAMED, is_of_a_person=True)) from None
    return value


def digest(purpose: str, *parts: bytes | memoryview) -> bytes:
    """Return the SHA-256 of a purpose and byte strings, each prefixed with its length against collisions."""
    hasher = _BEGUN.copy()
    hasher.update(purpose.encode("ascii"))
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def digest_in_slices(purpose: str, *parts: tuple[int, Iterable[bytes | memoryview]]) -> bytes:
    """Return what `digest` gives for parts that are not in memory at once: each one's length and slices."""
    hasher = _BEGUN.copy()
    hasher.update(purpose.encode("ascii"))
    for length, slices in parts:
        hasher.update(length.to_bytes(8, "little"))
        for one in slices:
            hasher.update(one)
    return hasher.digest()


def _check_version(cls: type[Any], error: ValidationError) -> None:
    """Refuse an object of another version for that, and not for the fields in which versions differ.

    Raises:
        UnsupportedVersion
    """
    for one in error.errors(include_url=False):
        # By `type` and not `isinstance`: to Python, true is an integer, but no version.
        if one["type"] == "literal_error" and one["loc"][-1:] == ("version",) and type(one["input"]) is int:
            found, known = one["input"], one["ctx"]["expected"]
            is_newer = found > max(map(int, _NUMBER.findall(known)))
            behind = "this software" if is_newer else "the party that sent it"
            raise UnsupportedVersion(
                f"the {cls.__name__} is of version {found}, this software implements {known}: "
                f"upgrade {behind}"
            )


def _explain(cls: type[Any], error: ValidationError, *, most: int = 1, is_of_a_person: bool = False) -> str:
    """Return one line from pydantic's report: where and why, without echoing the input.

    A person's settings that do not exist stand first, since one that is missing may be meant.
    """
    wrong = error.errors(include_input=False, include_url=False, include_context=False)
    if is_of_a_person:
        wrong.sort(key=lambda one: one["type"] != _UNKNOWN)
    told = [
        f"{'.'.join(str(step) for step in one['loc']) or 'the whole'}: "
        + (_list_settings(cls, *one["loc"]) if is_of_a_person and one["type"] == _UNKNOWN else one["msg"])
        for one in wrong[:most]
    ]
    return f"{cls.__name__}: {'; '.join(told)}"


def _list_settings(cls: Any, *place: int | str) -> str:
    """Return why an unknown setting is refused: the one that was probably meant, or all that there are."""
    for step in place[:-1]:
        held = _fields(cls)
        cls = held[str(step)].annotation if str(step) in held else None
    known = sorted(_fields(cls))
    near = get_close_matches(str(place[-1]), known, n=1)
    listed = f", there are {', '.join(known)}" if known else ""
    return "no such setting" + (f", did you mean {near[0]}?" if near else listed)


def _fields(cls: Any) -> dict[str, FieldInfo]:
    """Return the fields of a canonical class, or of the one in an optional's annotation."""
    of_optional = (_fields(one) for one in get_args(cls))
    return getattr(cls, "__pydantic_fields__", None) or next(filter(None, of_optional), {})

"""What all messages share: strict JSON, numbers that may be infinite, pages of long lists.

DatasetSummary.of(dataset).model_dump(mode="json")  # what `--json` prints, and the admin API answers
DatasetItem.model_validate_json(answer).value()     # what `RemoteAdServer` reads
"""

import math
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)

from maskedlark.errors import InvalidTask

MOST_INTEGER: Final = (1 << 63) - 1
"""The largest integer of a database."""
_ItemT = TypeVar("_ItemT")


class Message(BaseModel):
    """What an ad server answers. Bytes are in hex; fields that are not known are ignored."""

    model_config = ConfigDict(
        frozen=True,
        from_attributes=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        val_json_bytes="hex",
        ser_json_bytes="hex",
    )


class RequestBody(BaseModel):
    """What an ad server is sent. Unknown fields and values of another type are refused."""

    # A field that is misspelt would keep its default in silence, and spend another budget than was meant.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parse a request.

        Raises:
            InvalidTask: it is not one; the error names the first wrong field and contains no value.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise InvalidTask(first_fault(error)) from None


class ListPage(Message, Generic[_ItemT]):
    """A part of a long list, newest first.

    Attributes:
        items: The rows.
        next: `after` of the next page; null on the last one.
    """

    items: list[_ItemT]
    next: str | None


def _read_amount(value: Any) -> Any:
    if value is None:
        return math.inf
    # Not `value < 0`, which NaN is not.
    if isinstance(value, int | float) and not value >= 0:
        raise ValueError("expected a number of at least 0, or null for infinity")
    return value


def finite(value: float | None) -> float | None:
    """Return a number for JSON; None for one that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _decode(value: Any) -> Any:
    # Bytes are those of a file that was read here, on the way out.
    return b64decode(value) if isinstance(value, str) else value


Whole = Annotated[int, Field(ge=0, le=MOST_INTEGER)]
"""A number of things, or Unix seconds."""
Amount = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_read_amount),
    PlainSerializer(finite, return_type=float | None),
]
"""An epsilon, or part of a budget; null for infinity."""
File = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(lambda value: b64encode(value).decode(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""A file, in base64."""


def first_fault(error: ValidationError) -> str:
    """Return the first wrong field of a message and why it is wrong, without its value."""
    # Neither input nor context: both may hold a token, a model or a record.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"

"""What a remote ad server answers, read without trust: another form than its API's is a typed error."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache, wraps
from types import UnionType
from typing import Any, Final, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from maskedlark.errors import JobReason, JobRefused

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")
_WRONG_FORMS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_SHOWN: Final = 200
"""Characters of a cause: a remote server's value may be as long as its answer."""
_INTEGERS: Final = range(-(1 << 63), 1 << 63)
"""What a database holds; the float of a longer one may not exist."""


@contextmanager
def reading_answer() -> Iterator[None]:
    """Turn what Python raises on reading a wrong form into `JobRefused(BAD_ANSWER)`."""
    try:
        yield
    except _WRONG_FORMS as error:
        raise no_answer(f"an answer of another form: {type(error).__name__}: {str(error)[:_SHOWN]}") from None


def reads_answer(read: Callable[_Given, _Value]) -> Callable[_Given, _Value]:
    """Read an answer within `reading_answer`; every field of the result holds a value of its type."""

    @wraps(read)
    def reading(*given: _Given.args, **named: _Given.kwargs) -> _Value:
        with reading_answer():
            value = read(*given, **named)
            _check_fields(value)
            return value

    return reading


def require(condition: bool, what: str) -> None:
    """Refuse a value that its type allows and its meaning does not.

    Raises:
        ValueError: for `reading_answer`.
    """
    if not condition:
        raise ValueError(what)


def items_of(page: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Return the items of a page of a list.

    Raises:
        JobRefused(BAD_ANSWER): it has none, or more than the `most` that were asked for.
    """
    items = page.get("items")
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise no_answer("a page without items")
    if len(items) > most:
        raise no_answer(f"a page of {len(items)} items, where at most {most} were asked for")
    return items


def _check_fields(value: object) -> None:
    """Check the fields of a dataclass, and of those in it; canonical ones check theirs when they are made."""
    if not is_dataclass(value) or hasattr(value, "__pydantic_fields__"):
        return
    kind: Any = type(value)
    for name, hint in _hints(kind).items():
        if not _is_of(getattr(value, name), hint):
            raise TypeError(f"{name} is of another type or out of range")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type; of numbers, only those that can be computed with."""
    kinds, origin = get_args(hint), get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, kind) for kind in kinds)
    if hint in (int, float):
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS
        return is_whole or (hint is float and isinstance(value, float))
    if not isinstance(value, origin or hint):
        return False
    if isinstance(value, tuple):
        each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        return len(each) == len(value) and all(map(_is_of, value, each))
    if isinstance(value, Counter):  # which names the type of its keys alone
        return all(_is_of(key, kinds[0]) and _is_of(count, int) for key, count in value.items())
    _check_fields(value)
    return True


def no_answer(what: str) -> JobRefused:
    """Return the error of an ad server that sends what its API does not."""
    return JobRefused(JobReason.BAD_ANSWER, f"the ad server sends {what}")

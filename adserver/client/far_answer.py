"""What a remote ad server answers, read without trust: another form than its API's is a typed error."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from maskedlark.errors import JobReason, JobRefused

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")
_WRONG_FORMS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def reading_answer() -> Iterator[None]:
    """Turn what Python raises on reading a wrong form into `JobRefused(BAD_ANSWER)`."""
    try:
        yield
    except _WRONG_FORMS as error:
        raise no_answer(f"an answer of another form: {type(error).__name__}: {error}") from None


def reads_answer(read: Callable[_Given, _Value]) -> Callable[_Given, _Value]:
    """Read an answer within `reading_answer`."""

    @wraps(read)
    def reading(*given: _Given.args, **named: _Given.kwargs) -> _Value:
        with reading_answer():
            return read(*given, **named)

    return reading


def items_of(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a page of a list.

    Raises:
        JobRefused(BAD_ANSWER): it has none.
    """
    items = page.get("items")
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise no_answer("a page without items")
    return items


def no_answer(what: str) -> JobRefused:
    """Return the error of an ad server that sends what its API does not."""
    return JobRefused(JobReason.BAD_ANSWER, f"the ad server sends {what}")

"""Numbers as people type them into a form's fields."""

from collections.abc import Callable
from typing import TypeVar

from maskedlark.errors import InvalidTask

_NumberT = TypeVar("_NumberT", int, float)


def read_whole(name: str, typed: str) -> int:
    """Return the whole number that was typed into the field of this name.

    Raises:
        InvalidTask: it is none.
    """
    return _read(int, name, typed, "a whole number in digits alone, as 1000")


def read_number(name: str, typed: str) -> float:
    """Return the number that was typed into the field of this name.

    Raises:
        InvalidTask: it is none.
    """
    return _read(float, name, typed, "a number")


def _read(parse: Callable[[str], _NumberT], name: str, typed: str, expected: str) -> _NumberT:
    try:
        return parse(typed)
    except ValueError:
        raise InvalidTask(f"{name} is {typed!r}: expected {expected}") from None

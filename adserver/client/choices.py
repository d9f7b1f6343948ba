"""Names of choices and numbers, as people type them in Python."""

from enum import StrEnum
from numbers import Real
from typing import TypeVar

from maskedlark.errors import InvalidTask

_ChoiceT = TypeVar("_ChoiceT", bound=StrEnum)


def choose(kind: type[_ChoiceT], option: str, given: str) -> _ChoiceT:
    """Return the member of a name.

    Raises:
        InvalidTask: there is none of this name; the message lists those that there are.
    """
    try:
        return kind(given)
    except ValueError:
        raise InvalidTask(f"{option} must be {' or '.join(kind)}, not {given!r}") from None


def check_numbers(**given: object) -> None:
    """Check that settings are numbers, or None where they are left out.

    Raises:
        InvalidTask: naming the first that is not, such as a number in quotes.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, Real):
            raise InvalidTask(f"{name} is {value!r}: expected one number")

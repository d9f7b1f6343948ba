"""Names of choices, as people type them in Python."""

from enum import StrEnum
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

"""Numbers as people type them into a form's fields."""

from maskedlark.errors import InvalidTask


def read_whole(name: str, typed: str) -> int:
    """Return the whole number that was typed into the field of this name.

    Raises:
        InvalidTask: it is none.
    """
    try:
        return int(typed)
    except ValueError:
        raise InvalidTask(f"{name} is {typed!r}: expected a whole number in digits alone, as 1000") from None


def read_number(name: str, typed: str) -> float:
    """Return the number that was typed into the field of this name.

    Raises:
        InvalidTask: it is none.
    """
    try:
        return float(typed)
    except ValueError:
        raise InvalidTask(f"{name} is {typed!r}: expected a number") from None

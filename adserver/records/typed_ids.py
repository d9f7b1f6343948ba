"""Ids as people type them: the start of their hexadecimal form.

>>> low, high = id_range("0a", JobReason.UNKNOWN_JOB)
>>> low.hex()[:4], high.hex()[:4]
('0a', '0aff')
"""

from collections.abc import Sequence
from typing import Final

from maskedlark.errors import JobReason, JobRefused

_LONGEST_ID_DIGITS: Final = 64


def id_range(prefix: str, missing: JobReason) -> tuple[bytes, bytes]:
    """Return the least and the greatest id with this prefix.

    Raises:
        JobRefused(missing): the prefix is not hex.
    """
    try:
        # A byte has two digits; an id's range is closed by the longest id of all kinds.
        return (
            bytes.fromhex(prefix + "0" * (len(prefix) % 2)),
            bytes.fromhex(prefix.ljust(_LONGEST_ID_DIGITS, "f")),
        )
    except ValueError:
        raise JobRefused(
            missing,
            f"the {_kind(missing)} id is {prefix!r}: expected hexadecimal digits, a whole id or its start",
        ) from None


def the_only(found: Sequence[bytes], prefix: str, missing: JobReason) -> bytes:
    """Return the one id that was found with this prefix.

    Args:
        found: Up to two of them.
        prefix: What was typed.
        missing: The reason of the refusal, which names what kind of id it is.

    Raises:
        JobRefused(missing): no id, or more than one, begins with the prefix.
    """
    what = _kind(missing)
    if not found:
        raise JobRefused(
            missing,
            f"no {what} has an id that starts with {prefix!r}" if prefix else f"there is no {what} yet",
        )
    if len(found) > 1 and not prefix:
        raise JobRefused(
            missing,
            f"there are several {what}s: give the start of one's id, from `adserver {what} list`",
        )
    if len(found) > 1:
        raise JobRefused(
            missing, f"more than one {what} has an id that starts with {prefix!r}; give more digits"
        )
    return bytes(found[0])


def _kind(missing: JobReason) -> str:
    return missing.value.removeprefix("unknown_")

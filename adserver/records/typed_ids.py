"""Ids as people type them: the start of their hexadecimal form, or of a job's name.

>>> low, high = id_range("0a", JobReason.UNKNOWN_JOB)
>>> low.hex()[:4], high.hex()[:4]
('0a', '0aff')
"""

from collections.abc import Sequence
from string import hexdigits
from typing import Final

from adserver.records.defaults import MOST_JOB_NAME
from maskedlark.errors import JobReason, JobRefused

_LONGEST_ID_DIGITS: Final = 64
_JOB_ID_DIGITS: Final = 32
# Candidates that an error lists
_MOST_SHOWN: Final = 5
# A range of ids that holds none
_NO_IDS: Final = (b"\1", b"\0")


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


def job_search(typed: str) -> tuple[bytes, bytes, str]:
    """Return the least and the greatest id, and the start of a name, that a typed text may mean.

    The start is empty where no name is meant: of a whole id, so that no name can stand for another job's id,
    and of a text that no job is called.
    """
    is_hex = set(typed) <= set(hexdigits)
    low, high = id_range(typed, JobReason.UNKNOWN_JOB) if is_hex else _NO_IDS
    is_name = typed.isprintable() and len(typed) <= MOST_JOB_NAME
    return low, high, typed if is_name and not (is_hex and len(typed) == _JOB_ID_DIGITS) else ""


def the_job(found: Sequence[tuple[bytes, str]], typed: str) -> bytes:
    """Return the id of the one job that a typed text means.

    A whole name comes before longer ones that start with it, unless an id starts with it, too.

    Args:
        found: Id and name of each job that `job_search` finds; of an empty text, of up to two.
        typed: The start of an id or of a name.

    Raises:
        JobRefused(UNKNOWN_JOB): it means no job, or several, which the error lists.
    """
    if not typed:
        return the_only([job_id for job_id, _ in found], typed, JobReason.UNKNOWN_JOB)
    if not found:
        # A whole id comes from elsewhere, as from a helper's list, and not from this server's
        is_whole = len(typed) == _JOB_ID_DIGITS and set(typed) <= set(hexdigits)
        raise JobRefused(
            JobReason.UNKNOWN_JOB,
            f"no job has an id or a name that starts with {typed[:MOST_JOB_NAME]!r}: see `adserver job list`"
            + (f"; `adserver job close {typed}` closes one that only the helpers hold" if is_whole else ""),
        )
    whole = [] if any(one.hex().startswith(typed.lower()) for one, _ in found) else found
    meant = [one for one in whole if one[1] == typed] or found
    if len(meant) == 1:
        return bytes(meant[0][0])
    listed = ", ".join(f"{job_id.hex()[:12]} ({name!r})" for job_id, name in meant[:_MOST_SHOWN])
    more = f" and {len(meant) - _MOST_SHOWN} more" if len(meant) > _MOST_SHOWN else ""
    raise JobRefused(
        JobReason.UNKNOWN_JOB,
        f"several jobs have an id or a name that starts with {typed!r}: {listed}{more}; give more of one, or "
        "the start of its id",
    )


def whole_job_id(typed: str) -> bytes:
    """Return the job's id that a typed text is, which no list has to complete.

    Raises:
        JobRefused(UNKNOWN_JOB): it is not a whole id.
    """
    if len(typed) == _JOB_ID_DIGITS and set(typed) <= set(hexdigits):
        return bytes.fromhex(typed)
    raise JobRefused(
        JobReason.UNKNOWN_JOB,
        f"the id is {typed[:MOST_JOB_NAME]!r}: expected a whole id, {_JOB_ID_DIGITS} hexadecimal digits",
    )


def check_whole(job_id: bytes, name: str, typed: str) -> None:
    """Refuse to change a job that a part of its name found: another may have been meant, which is not there.

    Raises:
        JobRefused(UNKNOWN_JOB): `typed` is neither the start of the job's id nor its name.
    """
    if typed and name != typed and not job_id.hex().startswith(typed.lower()):
        raise JobRefused(
            JobReason.UNKNOWN_JOB,
            f"no job is called {typed[:MOST_JOB_NAME]!r}; {name!r} ({job_id.hex()[:12]}) begins with it: to "
            "change a job, give its whole name or the start of its id",
        )


def _kind(missing: JobReason) -> str:
    return missing.value.removeprefix("unknown_")

"""The codes of a key that get separate cells: given in a file, or found by a discovery.

>>> distinct_codes([9, 3, 9]).tolist()
[3, 9]
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adserver.records.defaults import NO_WORDS, OTHER
from adserver.records.plain_names import shown_name
from maskedlark.canonical import build, canonical
from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.releases.counting import key_index
from maskedlark.releases.query import MAX_DOMAIN
from maskedlark.reports.measurement import MAX_CODE, Key, Measurement

Codes = NDArray[np.uint32]


@canonical
class _CodeRange:
    """All codes from the first to the last one."""

    first: Annotated[int, Field(ge=0, le=MAX_CODE)]
    last: Annotated[int, Field(ge=0, le=MAX_CODE)]


def _read_domains(encoded: str) -> dict[str, Any]:
    """Parse a domain file: a JSON object with a domain for each key, which `codes_by_key` reads.

    Raises:
        InvalidTask: not that.
    """
    try:
        domains = json.loads(encoded)
    except (ValueError, RecursionError):  # the latter of brackets in brackets
        raise InvalidTask("the domain file is not valid JSON") from None
    if not isinstance(domains, dict):
        raise InvalidTask("the domain file must be a JSON object of keys")
    return domains


def codes_by_key(domains: Mapping[str, object], measurement: Measurement) -> dict[str, Codes]:
    """Return the codes of each key from a list of categories or codes, or from {"first": code, "last": code}.

    Raises:
        InvalidTask: neither of these, or a category that is not declared.
        JobRefused(UNDECLARED): a key that is not declared.
        JobRefused(DOMAIN_TOO_LARGE): more codes of a key than a query takes.
    """
    return {
        name: _codes(measurement.keys[key_index(measurement, name)], said) for name, said in domains.items()
    }


def words_by_key(domains: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the words that domains list, by key; `codes_by_key` has checked them."""
    return {
        name: tuple(one for one in said if isinstance(one, str))
        for name, said in domains.items()
        if isinstance(said, list)
    }


def load_domains(path: Path | None) -> dict[str, Any]:
    """Load the domains of a file as they are; an empty mapping without a file.

    Raises:
        InvalidTask: it cannot be read, or as `_read_domains`.
    """
    if path is None:
        return {}
    try:
        encoded = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidTask(f"cannot read the domain file {path} as UTF-8") from None
    return _read_domains(encoded)


def code_of(key: Key, said: str) -> int:
    """Return the code of a category or number that a person names.

    Raises:
        InvalidTask: the key has no such category; the message lists the first ones, and the closest. Or it is
            what results write in place of a word.
    """
    if said in NO_WORDS and not key.categories:
        raise InvalidTask(
            f"key {shown_name(key)!r} takes no {said!r}, which results write in place of a word: name a "
            "word of its column, or none for all"
        )
    try:
        return key.code(said)
    except InvalidTask:
        if not key.categories:
            raise
        if (composed := spell_as(key.categories)(said)) != said:
            return key.code(composed)
        folded = f": words that it does not list count as {OTHER!r}, one group of them all"
        raise InvalidTask(
            f"key {shown_name(key)!r} has no category {said!r}{folded if OTHER in key.categories else ''}; "
            f"{list_known(said, key.categories)}"
        ) from None


def spell_as(known: Iterable[str]) -> Callable[[str], str]:
    """Return what spells a word as one of those known that has its letters, such as é as e with an accent."""
    words = frozenset(known)
    composed = {unicodedata.normalize("NFC", word): word for word in words}
    return lambda said: said if said in words else composed.get(unicodedata.normalize("NFC", said), said)


def _code(key: Key, said: str | int) -> int:
    """Return what `code_of` does of a category; a number is a code, also of a key that lists categories."""
    is_listed = isinstance(said, int) and 0 <= said < len(key.categories)
    # A category that is a number, such as an age, comes first: people who list these do not quote them
    return int(said) if is_listed and str(said) not in key.categories else code_of(key, str(said))


def condition_code(key: Key, said: str) -> int:
    """Return the code of the category or number of a condition.

    Raises:
        InvalidTask: as `code_of`; of several categories, what to do instead.
    """
    try:
        return code_of(key, said)
    except InvalidTask:
        check_is_one(key.name, said, key.categories or map(str, range(key.size or 0)))
        raise


def check_is_one(name: str, said: str, known: Iterable[str]) -> None:
    """Refuse a condition that lists several of the words that are known of a key.

    Raises:
        InvalidTask: as that.
    """
    parts = [part.strip() for part in said.split(",")]
    if len(parts) > 1 and not {*known}.isdisjoint(parts):
        raise InvalidTask(
            f"where has {said!r} of the key {name!r}, and a condition has one value: for several, group by "
            "the key and add up"
        )


def distinct_codes(codes: Sequence[int]) -> Codes:
    """Return sorted, distinct codes in the form that a domain takes."""
    return np.unique(np.array(codes, np.uint32))


def words_by_code(key: Key, encoder: Encoder) -> dict[int, str]:
    """Return the encoder's words by the code that each has for a key without categories.

    A word's code is its digest, whichever column holds it. Words of one code are in one cell, which is named
    by all of them.
    """
    words: dict[int, list[str]] = {}
    for column in encoder.columns:
        for word in column.words:
            if not word.isdecimal():  # a number is its own code
                words.setdefault(key.code(word), []).append(word)
    return {code: " or ".join(dict.fromkeys(same)) for code, same in words.items()}


def _codes(key: Key, said: object) -> Codes:
    if isinstance(said, dict):
        between = build(_CodeRange, said)
        if between.last - between.first >= MAX_DOMAIN:
            raise JobRefused(
                JobReason.DOMAIN_TOO_LARGE,
                f"the domain of key {key.name!r} has more than {MAX_DOMAIN} codes, the limit: give fewer",
            )
        # In int64, because the end of a range up to the largest code is no uint32.
        return np.arange(between.first, between.last + 1, dtype=np.int64).astype(np.uint32)
    # A bool is an int to Python, and true would be code 1.
    if isinstance(said, list) and all(
        isinstance(one, str | int) and not isinstance(one, bool) for one in said
    ):
        return distinct_codes([_code(key, one) for one in said])
    raise InvalidTask(
        f"the domain of key {key.name!r} must be a list of categories or codes, or an object with "
        "first and last"
    )

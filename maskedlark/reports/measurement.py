"""What a task measures.

Named values whose sums are released, and named keys by which helpers filter and group.

A report carries its values as additive shares in the field, which neither helper can read, and its keys in
clear, which both helpers see and the ad server does not. Every report also shares the value `count`: 1 in a
real report and 0 in a fake one, so that a number of reports is as secret as any other sum.

    value shares of a report: count | for each value: itself | its buckets, 1 for the one that it falls into
    and 0 for the others

Helpers cannot see whether a shared value keeps its bounds: the browser is trusted with that, as it is with
the label.

Source: the paper, section 3.3 (Algorithm 1: additive sharing; 3.3.1: query and group by).
"""

import unicodedata
from bisect import bisect_right
from itertools import pairwise
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, model_validator

from maskedlark.canonical import canonical, digest
from maskedlark.errors import InvalidTask

MAX_VALUES: Final = 64
MAX_KEYS: Final = 16
MAX_BUCKETS: Final = 1_024
MAX_MAGNITUDE: Final = (1 << 31) - 1
MAX_CODE: Final = (1 << 32) - 1
MAX_CATEGORIES: Final = 1 << 22
MAX_WORD: Final = 100
"""Characters of a category's name."""
MAX_PARTS: Final = 10**9
_MOST_DIGITS: Final = 100
COUNT: Final = "count"
"""The value that every report has without declaring it."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Integer = Annotated[int, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
Title = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,100}$")]


@canonical
class Value:
    """A number that every real report holds, such as what was paid.

    Attributes:
        name: What queries call it.
        low: The least that a report may hold.
        high: The most.
        is_clamped: Whether a browser moves a value outside the bounds to the nearer one; otherwise it sends
            no report.
        bucket_starts: For histograms: where each bucket begins, ascending, the first at `low`; a bucket ends
            where the next begins, the last one at `high`. Empty: no histogram.
        title: What results call it, such as its column; None: its name.
        parts_per_unit: How many of the integers that reports hold make one of its unit, such as 100 of an
            amount in hundredths. Results are in the unit; bounds and buckets are in its parts.
    """

    name: Name
    low: Integer
    high: Integer
    is_clamped: bool = False
    bucket_starts: Annotated[tuple[Integer, ...], Field(max_length=MAX_BUCKETS)] = ()
    title: Annotated[Title | None, Field(exclude_if=lambda title: title is None)] = None
    parts_per_unit: Annotated[int, Field(ge=1, le=MAX_PARTS, exclude_if=lambda parts: parts == 1)] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        starts = self.bucket_starts
        if self.name == COUNT:
            raise ValueError("every report has the value count already")
        if self.low >= self.high:
            raise ValueError("low is below high")
        if starts and not (starts[0] == self.low and starts[-1] <= self.high):
            raise ValueError("bucket_starts begin at low and stay within high")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError("bucket_starts ascend")
        return self

    @property
    def bound(self) -> int:
        """The largest magnitude that a report may hold: what it adds to a sum at most."""
        return max(abs(self.low), abs(self.high))

    def within(self, value: int) -> int:
        """Clamp the value and return it as it is shared. Called by the browser.

        Raises:
            InvalidTask: outside the bounds of a value that is not clamped; the message does not tell it.
        """
        if self.is_clamped:
            return min(max(value, self.low), self.high)
        if not self.low <= value <= self.high:
            raise InvalidTask(f"value {self.name} lies outside its bounds {self.low}..{self.high}")
        return value

    def encode(self, value: int) -> list[int]:
        """Return what a report shares of a value within the bounds: itself, and a one at its bucket."""
        buckets = [0] * len(self.bucket_starts)
        if buckets:
            buckets[bisect_right(self.bucket_starts, value) - 1] = 1
        return [value, *buckets]


@canonical
class Key:
    """A code in every report that the helpers see, such as the campaign.

    Attributes:
        name: What queries call it.
        size: Codes are 0 to this less one; None: any u32.
        categories: Names of the codes from 0 on, or empty.
        title: What results call it, such as its column; None: its name.
    """

    name: Name
    size: Annotated[int, Field(ge=1, le=MAX_CATEGORIES)] | None = None
    categories: tuple[Annotated[str, Field(min_length=1, max_length=MAX_WORD)], ...] = ()
    title: Annotated[Title | None, Field(exclude_if=lambda title: title is None)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.categories and len(self.categories) != self.size:
            raise ValueError(
                f"key {self.name} lists {len(self.categories)} categories, but its size is {self.size}: leave"
                " the size out, or say how many there are"
            )
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("categories are distinct")
        return self

    def code(self, typed: str) -> int:
        """Return the code of a name that a person or a table uses.

        One of its categories; of a key that lists none a number, or, of an open key, any other word by its
        digest. A number that is no category is no code of one either: of ages 30 to 60, 17 is not the
        eighteenth.

        Raises:
            InvalidTask: no such category, or a number that is not below the size.
        """
        if typed in self.categories:
            return self.categories.index(typed)
        if self.categories:
            raise InvalidTask(f"key {self.name} has no category {typed!r}")
        is_short = typed.isdecimal() and len(typed) <= _MOST_DIGITS  # Python reads no more than 4300 of them
        if is_short and int(typed) <= (MAX_CODE if self.size is None else self.size - 1):
            return int(typed)
        if self.size is None and not typed.isdecimal():
            # So a word has one code at every browser without a list, however its accents are written
            composed = unicodedata.normalize("NFC", typed)
            return int.from_bytes(digest("key code", composed.encode())[:4], "little")
        raise InvalidTask(
            f"key {self.name} has no category {typed!r}: codes are below {self.size or MAX_CODE + 1}"
        )

    def label(self, code: int) -> str:
        """Return the readable name of a code."""
        return self.categories[code] if code < len(self.categories) else str(code)


class _Columns(NamedTuple):
    """Where a value stands among a report's value shares: itself, and `buckets` columns after it."""

    value: int
    buckets: int


@canonical
class Measurement:
    """What the reports of a task hold to be summed, and to group by.

    Attributes:
        min_cell_count: The k of k-anonymity of one cell of a query. Noisy counts are compared with it, so
            that cells of about k reports are shown or not by chance; hidden ones look like noise around zero.
        values: The declared values, in the order in which reports hold them.
        keys: The declared keys, in the order in which reports hold them.
        small_cell_delta: If set, a cell of fewer than k reports is shown with at most this probability: a
            count must pass k by a margin of the noise on it.
    """

    min_cell_count: Annotated[int, Field(ge=1, le=1 << 30)]
    values: Annotated[tuple[Value, ...], Field(max_length=MAX_VALUES)] = ()
    keys: Annotated[tuple[Key, ...], Field(max_length=MAX_KEYS)] = ()
    small_cell_delta: Annotated[
        float | None, Field(ge=2.0**-60, lt=0.5, exclude_if=lambda delta: delta is None)
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for ones in (self.values, self.keys):
            # A title that is its own name says nothing, and one of another's name is two things
            names = [name for one in ones for name in (one.name, one.title) if name]
            if len(set(names)) != len(names):
                raise ValueError("names and titles are distinct")
        if any(value.title == COUNT for value in self.values):
            raise ValueError("every report has the value count already")
        return self

    @property
    def num_columns(self) -> int:
        """Value shares in each report, count included."""
        return 1 + sum(1 + len(value.bucket_starts) for value in self.values)

    @property
    def view_bytes(self) -> int:
        """The bytes that keys add to the part of a share that both helpers see alike."""
        return 4 * len(self.keys)

    @property
    def share_bytes(self) -> int:
        """The bytes that value shares add to a share."""
        return 8 * self.num_columns

    def value(self, name: str) -> Value | None:
        """Return the declared value of a name; None for an undeclared name, and for count."""
        return next((value for value in self.values if value.name == name), None)

    def key_index(self, name: str) -> int | None:
        """Return a declared key's position in a report; None if it is not declared."""
        return next((index for index, key in enumerate(self.keys) if key.name == name), None)

    def columns(self, name: str) -> _Columns | None:
        """Return the positions of a value's shares; None if it is not declared."""
        if name == COUNT:
            return _Columns(0, 0)
        at = 1
        for value in self.values:
            if value.name == name:
                return _Columns(at, len(value.bucket_starts))
            at += 1 + len(value.bucket_starts)
        return None

"""How the house declares plain values: dataclasses that are frozen, slotted and built by keyword only.

>>> @frozen
... class Point:
...     x: int
...     y: int = 0
>>> Point(x=1)
Point(x=1, y=0)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")


@overload
def frozen(cls: type[_T], /) -> type[_T]: ...
@overload
def frozen(*, eq: bool = True) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T] | None = None, /, *, eq: bool = True) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Declare a frozen, slotted, keyword-only dataclass.

    Args:
        cls: The class; None in `@frozen(eq=False)`.
        eq: Whether two with equal fields are equal. Not for fields that are arrays: they compare by element.
    """
    # By keyword: two numbers in the wrong order would pass every type check.
    declare = dataclass(frozen=True, slots=True, kw_only=True, eq=eq)
    return declare if cls is None else declare(cls)


def pick_attributes(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes of a value by name: for JSON, or for another value that has them too."""
    return {name: getattr(value, name) for name in names}

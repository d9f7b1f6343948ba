"""What one part of the audit says: claims that hold or not, and the figures that show it.

    Part(claims={"all_under_claim": True}, figures={"seed": 7})

Each module of the audit offers functions from a seed to a part, and `tests.audit.__main__` lists them. They
run side by side in processes of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part's result.

    Attributes:
        claims: By name; the audit fails if one is false.
        figures: By name, as JSON takes them; no name is that of a claim.
    """

    claims: dict[str, bool]
    figures: dict[str, Any]


Examine: TypeAlias = Callable[[int], Part]
"""From the audit's seed to what one part says."""

"""What one part of the audit says: claims that hold or not, and the figures that show it.

    Part(claims={"all_under_claim": True}, figures={"seed": 7})

Each module of the audit offers functions from a seed to a part, and `tests.audit.__main__` lists them. They
run side by side in processes of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an audit of one adversary shows; each audit adds its case.

    Attributes:
        adversary: `ad_server` or `ad_server_and_helper`.
        claimed: The epsilon of one round, as the helper's own answer states it.
        shown: The epsilon that the guesses prove of the mechanism and at the rate that are charged, with the
            confidence that was asked for; infinite where these never allow them.
    """

    adversary: str
    claimed: float
    shown: float


def figures_of(finding: Any) -> dict[str, Any]:
    """A finding as JSON takes it, with what its case says among its own figures."""
    figures = asdict(finding)
    return {**figures.pop("case"), **figures}


def is_under(shown: Sequence[float], claimed: Sequence[float]) -> bool:
    """Whether no adversary shows more than is claimed against it."""
    return all(one <= other for one, other in zip(shown, claimed, strict=True))


Examine: TypeAlias = Callable[[int], Part]
"""From the audit's seed to what one part says."""

"""Whether a query fits next to what is spent and reserved, for a plan of it."""

from collections.abc import Sequence
from typing import Final

from maskedlark.privacy.accounting import Charge, spent, spent_in_turn
from maskedlark.releases.budget import DatasetBudget

# The search for the most that a next query may ask for ends up to 1 % too low
_ROUNDING: Final = 1.01


def why_query_refused(charges: Sequence[Charge], budget: DatasetBudget) -> str:
    """Return why both helpers would refuse a query, with the epsilon that fits; empty if they would not.

    Args:
        charges: What it is charged as, with the discovery that goes before it.
        budget: Of its dataset.

    Edge cases: an ad server at a URL sends what its uses cost, and not their charges; a query within 1 % of
    what fits is then not refused here.
    """
    if budget.next_epsilon is None:
        return ""
    task, left = budget.dataset.task, budget.next_epsilon
    asked = spent(charges, task.delta).ad_server
    if asked <= left:
        return ""
    held = [one.use.held for one in budget.uses]
    if all(held):
        together = spent_in_turn([*held, charges], task.delta)
        if together.ad_server <= task.epsilon and together.colluding <= task.collusion_epsilon:
            return ""
    elif asked <= _ROUNDING * left:
        return ""
    owner = task.unit.budget_owner
    does_not = f"epsilon {asked:.3g} does not fit next to what is spent and reserved, which leaves"
    if not left:
        return f"{does_not} nothing: use another {owner}"
    return (
        f"{does_not} {left:g}: ask for epsilon {left:g} (--epsilon {left:g}, epsilon={left:g}), or use "
        f"another {owner}"
    )

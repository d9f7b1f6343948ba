"""The relations between two datasets that an epsilon is stated for.

relation = Relation.LABEL
"""

from enum import StrEnum, unique


@unique
class Relation(StrEnum):
    """What an adversary would tell apart."""

    ZERO = "zero"
    """A report's contribution, and none. Budgets are of this relation."""
    LABEL = "label"
    """A report's contribution, and another one of it: one real label, and another."""

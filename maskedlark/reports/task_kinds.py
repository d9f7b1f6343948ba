"""The units and labels that a task chooses from, without the rest of a task: command lines import them."""

from enum import StrEnum, unique


@unique
class PrivacyUnit(StrEnum):
    """The unit that a budget protects, and the data that it covers."""

    REPORT = "report"
    """One report: a budget belongs to a dataset."""
    USER = "user"
    """One person: a budget belongs to the task, over all its datasets, rounds, queries and evaluations."""

    @property
    def budget_owner(self) -> str:
        """A word for the owner of a budget."""
        return "task" if self is PrivacyUnit.USER else "dataset"


@unique
class LabelKind(StrEnum):
    """What a label is."""

    CLASSES = "classes"
    """One of `size` classes, 0 to size - 1."""
    VALUES = "values"
    """A real value in [0, size - 1], privatised by probabilistic quantisation to `num_buckets` buckets and
    then to an integer."""

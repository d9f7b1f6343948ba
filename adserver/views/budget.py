"""A dataset's budgets as a notebook shows them."""

from adserver.records.html_table import html_note, html_table
from maskedlark.frozen import pick_attributes
from maskedlark.releases.budget import DatasetBudget
from maskedlark.terminal.budget_view import (
    LABEL_FROM_LABEL,
    NO_NOISE,
    forecast_line,
    next_line,
    standing_table,
    stopped_lines,
    title_line,
    use_lines,
    use_table,
)


class ShownBudget(DatasetBudget):
    """Both budgets of a dataset, which a notebook shows as `adserver budget` does."""

    __slots__ = ()

    @classmethod
    def show(cls, budget: DatasetBudget) -> "ShownBudget":
        """Return budgets that a notebook shows."""
        return cls(**pick_attributes(budget, DatasetBudget.__dataclass_fields__))

    def _repr_html_(self) -> str:
        """Return what is spent, reserved and left, and by which jobs and queries."""
        above = html_table(*standing_table(self)) if self.is_noisy else html_note(NO_NOISE)
        lines = [LABEL_FROM_LABEL] if self.is_noisy and self.labels is not None else []
        uses = html_table(*use_table(self)) if self.uses else ""
        below = [
            *stopped_lines(self),
            *use_lines(self),
            *([] if self.forecast is None else [forecast_line(self.forecast)]),
        ]
        lines += filter(None, [next_line(self)])
        return "".join(
            (html_note(title_line(self)), above, *map(html_note, lines), uses, *map(html_note, below))
        )

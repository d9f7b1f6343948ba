"""What a query will cost and how wide its intervals will be, before anything is charged, from public facts.

Sums and counts have noise of a size that follows from the query alone. How wide the interval of a mean or a
quantile is depends on what the reports hold.
"""

import math
from dataclasses import replace

from adserver.budgets.query_room import why_query_refused
from adserver.measuring.cells import Column
from adserver.measuring.intervals import half_width
from adserver.measuring.measurer import check_words, key_of, level_errors, planned_fields
from adserver.measuring.request import Request, plan_before_discovery
from adserver.measuring.result import describe_unit
from adserver.records.defaults import QUERY_ID_BYTES
from adserver.records.html_table import html_note
from adserver.records.plain_names import shown_name
from adserver.store.datasets import Dataset
from maskedlark.encoding.encoder import Encoder
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import DatasetBudget
from maskedlark.reports.measurement import COUNT
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.plural import plural


@frozen
class LevelForecast:
    """How wide intervals will be in the groups of one level.

    Attributes:
        keys: By which the level groups; none of the total.
        half_widths: Half of the 99 % interval of each column, in its unit.
        groups: How many groups the level has, without rests; of a key whose values a discovery finds, one.
    """

    keys: tuple[str, ...]
    half_widths: tuple[float, ...]
    groups: int = 1


@frozen
class AggregateForecast:
    """What a query will cost, and how wide the intervals of its sums and counts will be.

    Attributes:
        cost: Of the query, with the discovery that goes before it.
        discovery_cost: Of that discovery; None without one.
        delta: What all epsilons are read at.
        mechanism: The noise.
        unit: What epsilons protect, as of `ReleasedResult`.
        records: Reports in the dataset.
        discovered: The keys whose values the discovery finds.
        columns: What the numbers of a group are.
        levels: The widths of each level of groups, the coarsest first.
        are_at_most: Whether the widths are upper bounds: parts that add up to their whole make intervals
            narrower, and how many parts a discovery finds is not known.
        min_cell_count: The k of each group.
        threshold_noise: The standard deviation of the noise on the counts that are compared with k.
        threshold_margin: How far above k a noisy count must be for its group to be shown, in a task that
            hides small groups strictly; otherwise 0.
        discovery_margin: The same of the counts by which a discovery finds values; 0 without one.
        refusal: Why both helpers would refuse it, with the epsilon that fits; empty if they would not, or
            the budget was not asked for.
    """

    cost: Epsilons
    discovery_cost: Epsilons | None
    delta: float
    mechanism: Mechanism
    unit: PrivacyUnit
    records: int
    discovered: tuple[str, ...]
    columns: tuple[Column, ...]
    levels: tuple[LevelForecast, ...]
    are_at_most: bool
    min_cell_count: int
    threshold_noise: float
    threshold_margin: float
    discovery_margin: float
    refusal: str = ""

    @property
    def shown_from(self) -> float:
        """From about how many reports a group is shown."""
        return self.min_cell_count + self.threshold_margin

    @property
    def found_from(self) -> float:
        """From about how many reports a discovery finds a value."""
        return self.min_cell_count + self.discovery_margin

    @property
    def noise_warning(self) -> str:
        """That the noise hides the sums, or groups are too small to be shown; empty where neither is known.

        It follows from public figures: the reports in all, the groups, the noise, and the k of a group.
        """
        drowned = [
            (column, width)
            for level in self.levels
            for column, width in zip(self.columns, level.half_widths, strict=True)
            if width > self.records * max(map(abs, column.report_range or (0, math.inf)))
        ]
        if drowned:
            column, width = drowned[0]
            return (
                f"at this epsilon the answer is noise: half of the 99 % interval of {column.name} is "
                f"{_short(width)}, and {self.records:,} reports cannot add up to as much"
            )
        return next((said for level in self.levels if (said := self._warn_of_small_groups(level))), "")

    def _warn_of_small_groups(self, level: LevelForecast) -> str:
        """Return that a group of as many reports as a level's groups have on average is not shown.

        It is if its noisy count reaches the threshold, and its count, or else one of its sums, is clear of
        the noise.
        """
        sums = [
            (column, width)
            for column, width in zip(self.columns, level.half_widths, strict=True)
            if column.bucket is None
        ]
        counts = [(column, width) for column, width in sums if column.value == COUNT]
        # Of how many reports a sum is as large as half of its interval, where each adds the most
        clear = (
            width / max(map(abs, column.report_range or (0, math.inf))) for column, width in counts or sums
        )
        least, mean = max(self.shown_from, min(clear, default=0.0)), self.records / level.groups
        if not level.keys or mean >= least:
            return ""
        # k itself does not follow epsilon
        is_of_noise = least > self.min_cell_count
        remedy = "Ask with a larger epsilon, group" if is_of_noise else "Group"
        return (
            f"a group of average size by {', '.join(level.keys)} is not shown: that takes about "
            f"{least:,.0f} reports{' at this epsilon' if is_of_noise else ''}, and {self.records:,} reports "
            f"in {plural(level.groups, 'group')} are {_short(mean)} each on average. {remedy} by fewer keys, "
            "or collect more reports"
        )

    def __repr__(self) -> str:
        """Show the cost and the widths, a line for each level."""
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return the same, for a notebook."""
        return "".join(map(html_note, self.lines()))

    def lines(self) -> tuple[str, ...]:
        """Return what the query costs, how wide intervals will be, and which groups are shown."""
        about = "about " if self.threshold_noise else ""
        noise = f" (by counts with a noise of {self.threshold_noise:.3g})" if self.threshold_noise else ""
        return (
            *([f"this query is refused: {self.refusal}"] if self.refusal else []),
            f"{self._describe_cost()}, over {self.records:,} reports, half of a 99 % interval is"
            f"{' at most' if self.are_at_most else ''}:",
            *(f"  {self._describe_level(level)}" for level in self.levels),
            *self._describe_discovery(),
            f"groups of {about}{plural(round(self.shown_from), 'report')} or more are shown{noise}",
            *self._describe_read_off(),
            *([f"warning: {self.noise_warning}"] if self.noise_warning else []),
        )

    def _describe_cost(self) -> str:
        if self.mechanism is Mechanism.NONE:
            return "without noise"
        return (
            f"for epsilon {self.cost.ad_server:.4g}{describe_unit(self.unit)} ({self.cost.colluding:.4g} "
            f"against the ad server with one helper) at delta {self.delta:.2g}"
        )

    def _describe_level(self, level: LevelForecast) -> str:
        where = f"in a group by {', '.join(level.keys)}" if level.keys else "in the total"
        # All buckets of a histogram have the noise of a count
        widths = {
            column.name if column.bucket is None else f"each bucket of {column.shown_value}": width
            for column, width in zip(self.columns, level.half_widths, strict=True)
        }
        return f"{where}: " + ", ".join(f"{name} ± {_short(width)}" for name, width in widths.items())

    def _describe_discovery(self) -> tuple[str, ...]:
        if not self.discovered:
            return ()
        cost = (
            "" if self.discovery_cost is None else f", for epsilon {self.discovery_cost.ad_server:.4g} of it"
        )
        return (
            f"a discovery of {', '.join(self.discovered)} comes first{cost}: it finds values that "
            f"about {self.found_from:,.0f} reports or more have",
        )

    def _describe_read_off(self) -> tuple[str, ...]:
        """Describe what is not foretold, where the answer allows a mean or a quantile."""
        sums = {column.value for column in self.columns if column.bucket is None}
        read_off = [
            *(["means"] if COUNT in sums and len(sums) > 1 else []),
            *(["quantiles"] if any(column.bucket for column in self.columns) else []),
        ]
        if not read_off:
            return ()
        return (
            f"how wide intervals of {' and '.join(read_off)} are depends on the data, and is not foretold",
        )


def forecast_aggregate(
    request: Request,
    *,
    task: Task,
    dataset: Dataset,
    encoder: Encoder | None,
    budget: DatasetBudget | None = None,
) -> AggregateForecast:
    """Return what a query on a dataset will cost, and its widths. Nothing is asked and nothing is charged.

    Args:
        request: The query.
        task: The task.
        dataset: The dataset.
        encoder: The task's; None if it has none.
        budget: Of the dataset; None: whether the query fits is not said.

    Raises:
        InvalidTask, JobRefused: as `check_words` and `plan_query`.
    """
    check_words(request, task=task, encoder=encoder)
    no_id = bytes(QUERY_ID_BYTES)
    discovery, planned = plan_before_discovery(
        request, task=task, dataset=dataset, query_id=no_id, discovery_id=no_id
    )
    spec, found = planned.spec, None if discovery is None else discovery.spec
    already = () if found is None else found.charges(task)
    charges = (*already, *spec.charges(task))
    # Without rests no level is fitted to another, which only narrows intervals: how far is known once the
    # parts are
    are_at_most = found is not None and spec.are_rests_shown
    errors = level_errors(task, replace(spec, are_rests_shown=False) if are_at_most else spec)
    factor = half_width(task.mechanism)
    return AggregateForecast(
        cost=spent(charges, task.delta),
        discovery_cost=spent(already, task.delta) if already else None,
        delta=task.delta,
        mechanism=task.mechanism,
        unit=task.unit,
        records=dataset.size,
        discovered=() if found is None else found.keys,
        levels=tuple(
            LevelForecast(
                keys=tuple(shown_name(key_of(task, name)) for name in request.group_by[:level]),
                half_widths=tuple(factor * error for error in of_level),
                groups=math.prod(axis.size for axis in spec.group_by[:level]),
            )
            for level, of_level in zip(spec.levels, errors, strict=True)
        ),
        are_at_most=are_at_most,
        refusal="" if budget is None else why_query_refused(charges, budget),
        **planned_fields(task, spec, found),
    )


def _short(width: float) -> str:
    return f"{width:,.0f}" if width >= 100 else f"{width:.3g}"

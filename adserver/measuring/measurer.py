"""Step 8 of a measurement.

Ask both helpers, add their shares, and read the sums of every cell with what the noise makes of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import NormalDist
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.consistency import LevelEstimate, consistent
from adserver.measuring.domains import Codes, check_is_one, distinct_codes, words_by_code
from adserver.measuring.estimate import Estimate
from adserver.measuring.intervals import CONFIDENCE, chance_above, clear_of_zero, half_width
from adserver.measuring.query_runner import Asking, release_fields
from adserver.measuring.request import Request, plan_before_discovery, plan_query
from adserver.measuring.result import AggregateResult
from adserver.records.asked_query import ChosenId, PlannedQuery, StoredAnswer
from adserver.records.defaults import ALL, GROUP, MAY_BE_HIDDEN, QUERY_ID_BYTES, REST
from adserver.records.plain_names import distinct_names, filled_name, order_of, plain_name, shown_name
from adserver.store.datasets import Dataset
from maskedlark.encoding.close_names import find_close, list_known
from maskedlark.encoding.encoder import Encoder
from maskedlark.error_contract import Charged, contract
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.releases.counting import COUNT_UNITS, key_index, measurement_of
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.query import Axis, MeasureKind, QuerySpec
from maskedlark.releases.release import deviation_of_both
from maskedlark.reports.measurement import COUNT, Key, Value
from maskedlark.reports.task import Task
from maskedlark.terminal.plural import plural


@frozen
class Measurer(Asking[QuerySpec, AggregateResult]):
    """Asks queries over one dataset of a task.

    Attributes:
        encoder: The task's, whose words name codes; None if it has none.
        randomness: Of query ids.
    """

    encoder: Encoder | None = None
    randomness: Randomness = system_randomness

    def measure(
        self,
        request: Request,
        chosen: ChosenId | None = None,
        *,
        require_helpers: Callable[[], None] = lambda: None,
        require_room: Callable[[Sequence[Charge]], None] = lambda _: None,
    ) -> AggregateResult:
        """Plan a request, have it charged and answered, and read the answer.

        Args:
            request: What is asked.
            chosen: The id that the client chose for it, under which it can ask again; by default a new one.
            require_helpers: Called once the request is found to be right, before any of it is stored: raises
                if a helper is away.
            require_room: Called before with what a discovery and its query are charged as: raises if the
                budget has no room for both. (Of a query alone the helpers say so, and charge nothing.)

        Raises:
            InvalidTask, JobRefused: as `plan_query`; and what a helper refuses with.
            JobRefused(QUERY_CHANGED): something else was asked under the chosen id.
            JobRefused(QUERY_AFTER_DISCOVERY): its discovery was charged, and the query refused.
            HelperUnavailable: a helper did not answer in time; `again` asks the same query, which is charged
                only once.
        """
        # The query names the codes of its cells, so those are found by a release before it is planned.
        # What is wrong with the query must be found before a discovery is charged
        discovery, planned = plan_before_discovery(
            request,
            task=self.task,
            dataset=self.dataset,
            query_id=chosen.query_id if chosen else self._new_id(),
            discovery_id=chosen.of_discovery if chosen else self._new_id(),
        )
        if discovery is None:
            require_helpers()
            return self._keep_and_ask(planned, chosen, None)
        require_room((*discovery.spec.charges(self.task), *planned.spec.charges(self.task)))
        require_helpers()
        # The whole request is repeated, of which the discovery is a part
        with self._naming(chosen.query_id if chosen else discovery.spec.query_id):
            found, domains = self._discover(discovery, chosen)
        try:
            planned = self._plan(replace(request, domains={**request.domains, **domains}), chosen, found)
            return self._keep_and_ask(planned, chosen, found)
        except JobRefused as refused:
            if contract(refused.reason).charged is not Charged.NO:
                raise
            values = ", ".join(f"{plural(len(codes), 'value')} of {key}" for key, codes in domains.items())
            raise JobRefused(
                JobReason.QUERY_AFTER_DISCOVERY,
                f"the discovery was charged and found {values}, but the query was refused "
                f"({refused.reason.value}): {refused}",
            ) from None

    def _keep_and_ask(
        self, planned: PlannedQuery[QuerySpec], chosen: ChosenId | None, found: DiscoverySpec | None
    ) -> AggregateResult:
        kept = self._keep(planned, chosen)
        return self._ask_and_store(kept.planned, chosen, is_new=kept.is_new, found=found)

    def _plan(
        self, request: Request, chosen: ChosenId | None, found: DiscoverySpec | None
    ) -> PlannedQuery[QuerySpec]:
        query_id = chosen.query_id if chosen else self._new_id()
        return plan_query(request, task=self.task, dataset=self.dataset, query_id=query_id, found=found)

    def _length(self, spec: QuerySpec) -> int:
        return spec.num_numbers(self.task)

    def _read(
        self, planned: PlannedQuery[QuerySpec], answer: StoredAnswer, found: DiscoverySpec | None
    ) -> AggregateResult:
        return read_query(self.task, self.dataset, planned, answer, found, encoder=self.encoder)

    def _discover(
        self, planned: PlannedQuery[DiscoverySpec], chosen: ChosenId | None
    ) -> tuple[DiscoverySpec, dict[str, Codes]]:
        """Find the codes of each key by a discovery, and return it, as it was charged, with them.

        Raises:
            JobRefused(NOTHING_FOUND): none of one of the keys; that is an answer too, and was charged.
        """
        kept = self._keep(planned, chosen)
        spec = kept.planned.spec
        answer = self._ask(spec, spec.num_values, is_new=kept.is_new)
        total = answer.total.reshape(len(spec.keys), 1 + spec.max_codes)
        found = {}
        for name, numbers in zip(spec.keys, total, strict=True):
            count = int(numbers[0])
            # How many codes follow is both helpers' word alone, so it is checked before it cuts the answer.
            if not 0 < count <= spec.max_codes:
                raise JobRefused(
                    JobReason.NOTHING_FOUND,
                    f"no code of key {name!r} occurs in enough reports to be shown, which was charged: give "
                    "the key's domain",
                )
            found[name] = distinct_codes(numbers[1 : 1 + count].tolist())
        return spec, found

    def _new_id(self) -> bytes:
        return self.randomness(QUERY_ID_BYTES)


def check_words(request: Request, *, task: Task, encoder: Encoder | None) -> None:
    """Refuse a condition on a word that is probably a typing error: no list of the encoder has it.

    Where a column has the key's name its list would have had it; where none has, a list has one so close.

    Raises:
        JobRefused(UNDECLARED): as that; a word that the key's domain lists is taken as it is.
        InvalidTask: a condition lists several words.
    """
    columns = () if encoder is None else encoder.columns
    for name, word in request.where.items():
        is_open = key_of(task, name).size is None
        if not is_open or word.isdecimal() or word in request.domain_words.get(name, ()):
            continue
        named = [column for column in columns if plain_name(column.name) == name]
        own = {one for column in named for one in column.words}
        if named and not own:  # hashed or numbers: no list could have it
            continue
        known = own or {one for column in columns for one in column.words}
        if word not in known:
            check_is_one(name, word, known)
        if known and word not in known and (own or find_close(word, known)):
            raise JobRefused(
                JobReason.UNDECLARED,
                f"the task's encoder lists no {word!r} in {name}; {list_known(word, sorted(known))}. "
                f"If reports have it all the same, say so by a domain of {name} that lists it",
            )


def read_query(
    task: Task,
    dataset: Dataset,
    planned: PlannedQuery[QuerySpec],
    answer: StoredAnswer,
    found: DiscoverySpec | None = None,
    *,
    encoder: Encoder | None = None,
) -> AggregateResult:
    """Decode the estimates in both helpers' answer to a query.

    The cost includes that of the discovery `found`, if there was one. Codes of keys without categories are
    shown as the encoder's words that have them.

    Raises:
        JobRefused(SUM_OUT_OF_RANGE): no honest reports could give this answer.
    """
    spec = planned.spec
    spec.check_possible(task, answer.total, records=dataset.size)
    return AggregateResult(
        **release_fields(task, dataset, spec, answer, found.charges(task) if found else ()),
        group_by=tuple(shown_name(key_of(task, axis.key)) for axis in spec.group_by),
        where=_where(task, planned, encoder),
        rows=_rows(task, planned, answer.total, encoder),
        **planned_fields(task, spec, found),
    )


def planned_fields(task: Task, spec: QuerySpec, found: DiscoverySpec | None) -> dict[str, Any]:
    """Return the fields of an `AggregateResult` that are known before the query is asked.

    Those of the columns, and of what decides which cells are shown.
    """
    return {
        "columns": _columns(task, spec),
        "min_cell_count": measurement_of(task).min_cell_count,
        "threshold_noise": _threshold_noise(task, spec),
        "threshold_margin": spec.cell_margin(task) / COUNT_UNITS,
        "discovery_margin": 0.0 if found is None else _discovery_margin(task, found),
    }


def _discovery_margin(task: Task, spec: DiscoverySpec) -> float:
    """Return by how many reports a noisy count must pass k for its code to be found."""
    margin = spec.margin(task.mechanism, spec.count_noise_units(task))
    return max(margin, spec.cell_margin(task)) / COUNT_UNITS


def level_errors(task: Task, spec: QuerySpec) -> tuple[tuple[float, ...], ...]:
    """Return the standard error that each column will have in a group of each level, the coarsest first.

    Before the query is asked, in the values' units; of a query without groups, those of the total.
    """
    nothing = np.zeros(spec.num_numbers(task), np.int64)
    # Errors follow from the tree of cells alone, not from what they hold. The rest has others, and is last.
    errors = _errors(task, spec)
    return tuple(
        tuple((errors * math.sqrt(level.variances[0])).tolist()) for level in _estimates(task, spec, nothing)
    )


def _columns(task: Task, spec: QuerySpec) -> tuple[Column, ...]:
    measurement, units = measurement_of(task), spec.noise_units(task)
    columns: list[Column] = []
    for measure in spec.measures:
        scale = units / measure.scale
        counted_by = filled_name(measure.value, measurement.values) or ""
        value = measurement.value(measure.value)
        title = measure.value if value is None else shown_name(value)
        if value is None or measure.kind is MeasureKind.SUM:
            held = (0, 1) if value is None else _in_unit(value, value.low, value.high)
            parts = 1 if value is None else value.parts_per_unit
            columns.append(
                Column(
                    name=title,
                    value=measure.value,
                    title=title,
                    bucket=None,
                    noise_scale=scale / parts,
                    clipped_to=held if value is not None and value.is_clamped else None,
                    report_range=held,
                    counted_by=counted_by,
                    parts_per_unit=parts,
                )
            )
            continue
        ends = [start - 1 for start in value.bucket_starts[1:]] + [value.high]
        columns += [
            Column(
                name=f"{title}[{low:.10g}..{high:.10g}]",
                value=value.name,
                title=title,
                bucket=(low, high),
                noise_scale=scale,
                report_range=(0, 1),
                counted_by=counted_by,
            )
            for low, high in (
                _in_unit(value, *bounds) for bounds in zip(value.bucket_starts, ends, strict=True)
            )
        ]
    # A title may be another column's name, or one that a row has beside its numbers
    names = distinct_names([GROUP, MAY_BE_HIDDEN, *(column.name for column in columns)])[2:]
    return tuple(replace(column, name=name) for column, name in zip(columns, names, strict=True))


def _in_unit(value: Value, low: int, high: int) -> tuple[float, float]:
    """Return two numbers that reports hold in the value's unit."""
    parts = value.parts_per_unit
    return (low, high) if parts == 1 else (low / parts, high / parts)


def key_of(task: Task, name: str) -> Key:
    """Return a declared key.

    Raises:
        JobRefused(UNDECLARED): the task declares none of this name.
    """
    measurement = measurement_of(task)
    return measurement.keys[key_index(measurement, name)]


def _rows(
    task: Task, planned: PlannedQuery[QuerySpec], total: SignedVector, encoder: Encoder | None
) -> tuple[ResultRow, ...]:
    """Return the cells of every level with their estimates; rolled-up levels are made consistent.

    Intervals end where reports within their bounds cannot add up to more or to less, such as a count below 0.
    The values of an open key are in the order of their names: codes of words are digests, in no order.
    """
    spec = planned.spec
    names = _names(task, planned, encoder)
    orders = [_reading_order(task, axis, of) for axis, of in zip(spec.group_by, names, strict=True)]
    names = [[of[place] for place in order] for of, order in zip(names, orders, strict=True)]
    errors = _errors(task, spec)
    factor = half_width(task.mechanism)
    hidden = _numbers_of_hidden(task, spec)
    possible = [column.sum_range for column in _columns(task, spec)]
    rows: list[ResultRow] = []
    for level, estimate in zip(spec.levels, _estimates(task, spec, total), strict=True):
        cells = _ordered_cells(orders, level)
        spread = np.sqrt(estimate.variances)[cells, None] * errors
        for group, values, deviations in zip(
            _groups(names, level), estimate.values[cells].tolist(), spread.tolist(), strict=True
        ):
            estimates = tuple(
                Estimate(
                    value=value, standard_error=error, low=value - factor * error, high=value + factor * error
                ).within(*ends)
                for value, error, ends in zip(values, deviations, possible, strict=True)
            )
            rows.append(ResultRow(group=group, estimates=estimates))
    widened = _widen([row for row in rows if not _is_always_shown(row, spec)], hidden, task.mechanism)
    return tuple(row if _is_always_shown(row, spec) else next(widened) for row in rows)


def _is_always_shown(row: ResultRow, spec: QuerySpec) -> bool:
    return REST in row.group and spec.are_rests_shown


def _errors(task: Task, spec: QuerySpec) -> NDArray[np.float64]:
    """Return the standard deviation of both helpers' noise on each column of a single cell."""
    scales = np.array([column.noise_scale for column in _columns(task, spec)])
    return scales * deviation_of_both(task.mechanism)


def _threshold_noise(task: Task, spec: QuerySpec) -> float:
    """Return the standard deviation of the noise on the counts that decide which cells are shown."""
    return spec.count_noise_units(task) / COUNT_UNITS * _deviation_of_one(task.mechanism)


def _deviation_of_one(mechanism: Mechanism) -> float:
    """Return the standard deviation of a noise of scale 1."""
    match mechanism:
        case Mechanism.NONE:
            return 0.0
        case Mechanism.GAUSSIAN:
            return 1.0
        case Mechanism.LAPLACE:
            return math.sqrt(2)


@frozen
class _Hidden:
    """What a hidden cell may have.

    Attributes:
        counted: The column of the count, if the query has one.
        least: By column, the least sum.
        most: By column, the most.
    """

    counted: int | None
    least: tuple[float, ...]
    most: tuple[float, ...]


def _numbers_of_hidden(task: Task, spec: QuerySpec) -> _Hidden:
    """Return what a cell may have that is hidden with a probability of half of what intervals may miss."""
    rare = (1 - CONFIDENCE) / 2
    scale = spec.count_noise_units(task) / COUNT_UNITS
    match task.mechanism:
        case Mechanism.NONE:
            noise = -1.0  # a cell of k reports is shown
        case Mechanism.GAUSSIAN:
            noise = scale * NormalDist().inv_cdf(1 - rare)
        case Mechanism.LAPLACE:
            # Laplace noise is above t scales with a probability of exp(-t) / 2.
            noise = scale * math.log(1 / (2 * rare))
        case _:
            assert_never(task.mechanism)
    records = measurement_of(task).min_cell_count + spec.cell_margin(task) / COUNT_UNITS + noise
    columns = _columns(task, spec)
    sums = [column.value == COUNT and column.bucket is None for column in columns]
    ranges = [column.report_range or (0, 0) for column in columns]
    return _Hidden(
        counted=sums.index(True) if any(sums) else None,
        least=tuple(records * min(0, low) for low, _ in ranges),
        most=tuple(records * max(0, high) for _, high in ranges),
    )


def _widen(rows: Sequence[ResultRow], hidden: _Hidden, mechanism: Mechanism) -> Iterator[ResultRow]:
    """Yield rows whose intervals hold what a hidden cell may have, unless they are surely shown.

    A hidden cell shows noise around zero. Its count tells, or else that a column is clear of zero; of the
    cells that are taken for shown, a share of `CONFIDENCE` is, however many there are.
    """
    if not rows:
        return
    decisive = [row.estimates if hidden.counted is None else (row.estimates[hidden.counted],) for row in rows]
    values, errors = np.array(
        [[(one.value, one.standard_error) for one in row] for row in decisive]
    ).transpose(2, 0, 1)
    # A count is above zero; of other sums the one that is clearest counts, on either side.
    clear = (values if hidden.counted is not None else np.abs(values)) / np.where(errors > 0, errors, 1.0)
    chances = chance_above(mechanism, clear.max(axis=1))
    if hidden.counted is None:
        chances = 2 * clear.shape[1] * chances
    are_shown = clear_of_zero(chances, (1 - CONFIDENCE) / 2)
    for row, is_shown in zip(rows, are_shown.tolist(), strict=True):
        if is_shown:
            yield row
            continue
        estimates = tuple(
            replace(one, low=min(one.low, least), high=max(one.high, most))
            for one, least, most in zip(row.estimates, hidden.least, hidden.most, strict=True)
        )
        yield replace(row, estimates=estimates, may_be_hidden=estimates != row.estimates)


def _estimates(task: Task, spec: QuerySpec, total: SignedVector) -> Sequence[LevelEstimate]:
    """Return the sums in the values' units, by level; fitted to each other where parts add up."""
    measurement = measurement_of(task)
    scales = np.array(
        [measure.scale for measure in spec.measures for _ in measure.columns(measurement)], np.int64
    )
    # Divided in integers first: a float64 of the whole sum would round it beyond 2^53 units.
    whole, rest = np.divmod(total.reshape(-1, len(scales)), scales)
    parts = np.array([column.parts_per_unit for column in _columns(task, spec)])
    values: NDArray[np.float64] = (whole + rest / scales) / parts
    ends = np.cumsum([spec.num_cells(level) for level in spec.levels])
    levels = np.split(values, ends[:-1])
    if task.mechanism is Mechanism.NONE or not spec.are_rests_shown:  # parts add up only with their rests
        return [LevelEstimate(values=one, variances=np.ones(len(one))) for one in levels]
    return consistent(
        levels, [1 if level == 0 else spec.group_by[level - 1].size + 1 for level in spec.levels]
    )


def _names(task: Task, planned: PlannedQuery[QuerySpec], encoder: Encoder | None) -> list[list[str]]:
    """Return, for each axis, the names of its codes."""
    domains = planned.spec.decode_domains(planned.beside)
    names = []
    for axis, domain in zip(planned.spec.group_by, domains, strict=True):
        key = key_of(task, axis.key)
        words = _words(key, planned, encoder)
        codes = range(axis.size) if domain is None else domain.tolist()
        names.append([words.get(code, key.label(code)) for code in codes])
    return names


def _where(
    task: Task, planned: PlannedQuery[QuerySpec], encoder: Encoder | None
) -> tuple[tuple[str, str], ...]:
    """Return the key and word of each condition."""
    keys = [(key_of(task, one.key), one.code) for one in planned.spec.where]
    return tuple(
        (shown_name(key), _words(key, planned, encoder).get(code, key.label(code))) for key, code in keys
    )


def _words(key: Key, planned: PlannedQuery[QuerySpec], encoder: Encoder | None) -> dict[int, str]:
    """Return the words of a key's codes that the encoder has, or that the query was asked in."""
    # The codes of a key with a size are its own categories or numbers, not digests of words.
    if key.size is not None:
        return {}
    asked = planned.words.domains.get(key.name, ())
    if key.name in planned.words.where:
        asked = (*asked, planned.words.where[key.name])
    known = {} if encoder is None else words_by_code(key, encoder)
    return {key.code(word): word for word in asked} | known


def _reading_order(task: Task, axis: Axis, names: Sequence[str]) -> list[int]:
    """Return the places of an axis' codes in the order in which people look for their names.

    Numbers come first. The order of a key with a size is that in which the task declares it.
    """
    places = list(range(len(names)))
    if key_of(task, axis.key).size is not None:
        return places
    return sorted(places, key=lambda place: order_of(names[place]))


def _ordered_cells(orders: Sequence[Sequence[int]], level: int) -> NDArray[np.int64]:
    """Return the places of one level's cells in the order of `_groups`, in which rests stay last."""
    if level == 0:
        return np.zeros(1, np.int64)
    finest = [*orders[level - 1], len(orders[level - 1])]
    sizes = [*(len(order) for order in orders[: level - 1]), len(finest)]
    places = np.arange(math.prod(sizes)).reshape(sizes)
    return places[np.ix_(*orders[: level - 1], finest)].ravel()


def _groups(names: Sequence[Sequence[str]], level: int) -> Sequence[tuple[str, ...]]:
    """Return the groups of one level's cells, in their order."""
    coarser = (ALL,) * (len(names) - level)
    if level == 0:
        return [coarser]
    return [(*group, *coarser) for group in product(*names[: level - 1], [*names[level - 1], REST])]

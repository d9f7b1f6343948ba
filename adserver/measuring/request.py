"""From what a person asks for, by names, to a query that the helpers will accept: its noise included."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from adserver.budgets.asked_epsilon import check_epsilon
from adserver.measuring.domains import Codes, codes_by_key, condition_code, spell_as, words_by_key
from adserver.records.asked_query import AskedWords, PlannedQuery
from adserver.records.exported_model import ModelWeights
from adserver.records.plain_names import declared_name, names_by_title, shown_name
from adserver.store.datasets import Dataset
from maskedlark.canonical import build
from maskedlark.encoding.close_names import find_close, list_known
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import Condition, key_index, measurement_of
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.query import MAX_DOMAIN, Axis, Measure, MeasureKind, QuerySpec, codes_digest
from maskedlark.releases.release import fitting
from maskedlark.reports.measurement import COUNT, Measurement
from maskedlark.reports.task import Task

if TYPE_CHECKING:
    from adserver.measuring.result import AggregateResult

DEFAULT_SHARE: Final = 0.1
"""Of the task's epsilon, what a query costs that does not say."""
DISCOVERY_SHARE: Final = 0.25
"""Of a query's epsilon, what it costs to find its groups first."""
DISCOVERY_DELTA: Final = 0.01
"""Of the task's delta, what it costs to find groups."""
# What the largest contribution to a sum is carried as: a value bears noise in proportion to its own bounds.
_UNITS: Final = 1 << 30
# An answer to a discovery is padded to so many codes, found or not.
_MAX_FOUND: Final = 10_000
# Stands for the codes that a discovery will find, to check the rest of the query before
_ANY_CODE: Final = np.zeros(1, np.uint32)

_T = TypeVar("_T")
# What reports hold is fixed when their task is signed
_NEW_TASK: Final = (
    ". A column that it does not declare takes a new task (in quickstart, name it in [measure] and run again)"
)


@frozen
class Request:
    """A query as a person describes it.

    Attributes:
        values: Names of declared values, or count, to sum.
        histograms: Names of declared values with buckets.
        group_by: Names of declared keys, the coarsest first.
        where: For keys: the category or code that summed reports have.
        domains: For keys: the codes that get separate cells, ascending; the default is all codes of a key
            with a size.
        is_discovered: First find the codes of keys without a domain, by a separate private release.
        is_rolled_up: Release the coarser levels too, up to the total, consistent with each other.
        epsilon: What it may cost against the ad server; None: a tenth of the task's budget.
        domain_words: For keys: the words that domains were given in.
    """

    values: tuple[str, ...]
    histograms: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, Codes] = field(default_factory=dict)
    is_discovered: bool = False
    is_rolled_up: bool = False
    epsilon: float | None = None
    domain_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def words(self) -> AskedWords:
        """The words that codes stand for."""
        return AskedWords(where=self.where, domains=self.domain_words)


def read_request(
    measurement: Measurement,
    *,
    values: Sequence[str] = (),
    histograms: Sequence[str] = (),
    group_by: Sequence[str] = (),
    where: Mapping[str, str] | None = None,
    domains: Mapping[str, Any] | None = None,
    discover: bool = False,
    roll_up: bool = False,
    epsilon: float | None = None,
    encoder: Encoder | None = None,
) -> Request:
    """Return what a client asks, with names as the task declares them and domains as codes.

    Words of keys without categories are spelled as the task's encoder has them, if it has them.

    Raises:
        InvalidTask, JobRefused: as `codes_by_key`.
        JobRefused(MALFORMED): two names mean one key.
        JobRefused(UNDECLARED): a name means no key.
    """
    summed = frozenset({COUNT, *(value.name for value in measurement.values)})
    titles = names_by_title(measurement.values)
    by_key = _by_declared_name((domains or {}).items(), measurement, "domains")
    conditions = _by_declared_name((where or {}).items(), measurement, "where")
    spell = spell_as(word for column in (encoder.columns if encoder else ()) for word in column.words)
    for key in (one for one in measurement.keys if not one.categories):
        if key.name in conditions:
            conditions[key.name] = spell(conditions[key.name])
        if isinstance(said := by_key.get(key.name), list):
            by_key[key.name] = [spell(word) if isinstance(word, str) else word for word in said]
    return Request(
        # A column's own name may have letters that a task's names have not; said in both ways it is one value
        values=tuple(dict.fromkeys(declared_name(name, summed, titles) for name in values)),
        histograms=tuple(dict.fromkeys(declared_name(name, summed, titles) for name in histograms)),
        group_by=tuple(_by_declared_name([(name, name) for name in group_by], measurement, "group_by")),
        where=conditions,
        domains=codes_by_key(by_key, measurement),
        domain_words=words_by_key(by_key),
        is_discovered=discover,
        is_rolled_up=roll_up,
        epsilon=epsilon,
    )


def _by_declared_name(said: Iterable[tuple[str, _T]], measurement: Measurement, what: str) -> dict[str, _T]:
    """Return a mapping by the names of keys that are meant.

    Raises:
        JobRefused(MALFORMED): two names mean one key.
    """
    found = dict[str, _T]()
    for name, value in said:
        key = _declared_key(name, measurement)
        if key in found:
            other = "" if name == key else f", once as {name[:80]!r}"
            raise JobRefused(JobReason.MALFORMED, f"{what} names the key {key!r} twice{other}: name it once")
        found[key] = value
    return found


def _declared_key(said: str, measurement: Measurement) -> str:
    """Return the name of the key that is meant.

    Raises:
        JobRefused(UNDECLARED): the task declares no such key.
    """
    declared = frozenset(key.name for key in measurement.keys)
    name = declared_name(said, declared, names_by_title(measurement.keys))
    if name not in declared:
        shown = sorted(map(shown_name, measurement.keys))
        known = list_known(said, shown) if declared else "it declares none"
        titles = names_by_title(measurement.keys)
        if (close := find_close(said, shown)) in titles:
            known += f" ({close!r} may be written as {titles[close]})"
        raise JobRefused(JobReason.UNDECLARED, f"the task declares no key {said[:80]!r}; {known}{_NEW_TASK}")
    return name


def name_groups(
    result: "AggregateResult", measurement: Measurement, domains: Mapping[str, Any]
) -> "AggregateResult":
    """Return an answer in which groups that have a code for a name are called by words that have it.

    It costs nothing: the words only name what was released, such as the groups that a discovery found.

    Args:
        result: The answer.
        measurement: Its task's.
        domains: For keys: words, such as those of a file that lists more than were found.

    Raises:
        InvalidTask, JobRefused: as `read_request`.
    """
    by_key = _by_declared_name(domains.items(), measurement, "domains")
    codes_by_key(by_key, measurement)
    names = dict[str, dict[str, str]]()
    for name, words in words_by_key(by_key).items():
        key = measurement.keys[key_index(measurement, name)]
        of_code = dict[str, list[str]]()
        for word in words if key.size is None else ():
            of_code.setdefault(str(key.code(word)), []).append(word)
        names[shown_name(key)] = {code: " or ".join(same) for code, same in of_code.items()}
    rows = tuple(
        replace(
            row,
            group=tuple(
                names.get(key, {}).get(word, word)
                for key, word in zip(result.group_by, row.group, strict=True)
            ),
        )
        for row in result.rows
    )
    return replace(result, rows=rows)


def plan_before_discovery(
    request: Request, *, task: Task, dataset: Dataset, query_id: bytes, discovery_id: bytes
) -> tuple[PlannedQuery[DiscoverySpec] | None, PlannedQuery[QuerySpec]]:
    """Return the discovery that goes before a query, None if none does, and the query.

    Any code stands for those that the discovery will find: all else of the query is checked and fixed.

    Raises:
        InvalidTask, JobRefused: as `plan_query`.
    """
    missing = keys_to_discover(request, task) if request.is_discovered else ()
    discovery = None
    if missing:  # what is known already costs nothing to find
        discovery = plan_discovery(request, task=task, dataset=dataset, query_id=discovery_id, keys=missing)
    planned = plan_query(
        replace(request, domains={**request.domains, **dict.fromkeys(missing, _ANY_CODE)}),
        task=task,
        dataset=dataset,
        query_id=query_id,
        found=None if discovery is None else discovery.spec,
    )
    return discovery, planned


def keys_to_discover(request: Request, task: Task) -> tuple[str, ...]:
    """Return the keys to group by whose codes are not known yet."""
    measurement = measurement_of(task)
    keys = [measurement.keys[key_index(measurement, name)] for name in request.group_by]
    return tuple(key.name for key in keys if key.size is None and key.name not in request.domains)


def plan_discovery(
    request: Request, *, task: Task, dataset: Dataset, query_id: bytes, keys: tuple[str, ...]
) -> PlannedQuery[DiscoverySpec]:
    """Plan the release that finds the codes of some keys, at its share of the request's epsilon.

    Raises:
        As `plan_query`.
    """
    dataset.check_usable(task.task_id)
    spec = build(
        DiscoverySpec,
        {
            "query_id": query_id,
            "task_id": task.task_id,
            "dataset_id": dataset.dataset_id,
            "keys": keys,
            "where": _conditions(request, measurement_of(task)),
            "max_codes": _MAX_FOUND,
            "noise_multiplier": 0.0,  # found by `fitting`, from what it may cost
            "delta": max(2.0**-60, DISCOVERY_DELTA * task.delta),
        },
    )
    planned = fitting(task, spec, epsilon=DISCOVERY_SHARE * query_epsilon(request.epsilon, task))
    planned.check(task, records=dataset.size)
    return PlannedQuery(spec=planned, words=request.words)


def plan_query(
    request: Request,
    *,
    task: Task,
    dataset: Dataset,
    query_id: bytes,
    found: DiscoverySpec | None = None,
) -> PlannedQuery[QuerySpec]:
    """Check a request against its task and dataset, and fix its noise.

    Together with the discovery `found` that went before it, it costs what was asked.

    Raises:
        InvalidTask: a number is out of its range, or a category is not declared.
        JobRefused: UNKNOWN_DATASET, UNDECLARED, DOMAIN_TOO_LARGE, OVERFLOW, NOISE_OUT_OF_RANGE,
            BUDGET_EXHAUSTED, or MALFORMED for a request that does not say enough.
    """
    dataset.check_usable(task.task_id)
    measurement = measurement_of(task)
    axes = [_axis(name, request, measurement) for name in request.group_by]
    spec = build(
        QuerySpec,
        {
            "query_id": query_id,
            "task_id": task.task_id,
            "dataset_id": dataset.dataset_id,
            "measures": tuple(_measures(request, measurement)),
            "group_by": tuple(axes),
            "levels": tuple(range(0 if request.is_rolled_up else len(axes), len(axes) + 1)),
            "where": _conditions(request, measurement),
            "noise_multiplier": 0.0,
            "threshold_noise_multiplier": 0.0,
            "are_rests_shown": (request.is_rolled_up and bool(axes) and measurement.small_cell_delta is None),
        },
    )
    already = () if found is None else found.charges(task)
    planned = fitting(task, spec, epsilon=query_epsilon(request.epsilon, task), already=already)
    planned.check(task, records=dataset.size)
    listed = [request.domains[axis.key] for axis in axes if axis.codes_digest is not None]
    beside = b"".join(codes.astype("<u4").tobytes() for codes in listed)
    return PlannedQuery(spec=planned, beside=beside, words=request.words)


def query_epsilon(epsilon: float | None, task: Task) -> float:
    """Return what a query may cost against the ad server.

    What was said, or its default share of the task's budget; infinite without noise.

    Raises:
        InvalidTask: it is not positive and finite, or more than the task's budget.
        JobRefused(NOISE_OUT_OF_RANGE): the task has no noise, and so no epsilon.
    """
    if task.mechanism is Mechanism.NONE:
        if epsilon is not None:
            raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, "the task adds no noise: leave out epsilon")
        return math.inf
    if epsilon is None:
        return DEFAULT_SHARE * task.epsilon
    check_epsilon(epsilon, task)
    return epsilon


def _axis(name: str, request: Request, measurement: Measurement) -> Axis:
    key = measurement.keys[key_index(measurement, name)]
    codes = request.domains.get(name)
    if codes is None:
        if key.size is None:
            raise JobRefused(
                JobReason.MALFORMED,
                f"key {name!r} has no list of categories: give its domain, or discover it (--discover)",
            )
        settings = {"key": name, "size": key.size}
    else:
        if len(codes) > MAX_DOMAIN:
            raise JobRefused(
                JobReason.DOMAIN_TOO_LARGE,
                f"the domain of key {name!r} has {len(codes)} codes, the limit is {MAX_DOMAIN}: give fewer",
            )
        settings = {"key": name, "size": len(codes), "codes_digest": codes_digest(codes)}
    try:
        return build(Axis, settings)
    except InvalidTask as error:
        raise JobRefused(JobReason.DOMAIN_TOO_LARGE, f"key {name!r}: {error}") from None


def _measures(request: Request, measurement: Measurement) -> list[Measure]:
    measures = []
    for kind, names in ((MeasureKind.SUM, request.values), (MeasureKind.HISTOGRAM, request.histograms)):
        for name in names:
            value = measurement.value(name)
            if value is None and name != COUNT:
                known = list_known(name, [COUNT, *map(shown_name, measurement.values)])
                raise JobRefused(
                    JobReason.UNDECLARED, f"the task declares no value {name!r}; {known}{_NEW_TASK}"
                )
            # A count or a bucket gets at most 1 of each report.
            bound = 1 if value is None or kind is MeasureKind.HISTOGRAM else value.bound
            measures.append(build(Measure, {"value": name, "kind": kind, "scale": max(1, _UNITS // bound)}))
    if not measures:
        raise JobRefused(
            JobReason.MALFORMED,
            "the query contains no values: give at least one; `count` is always available",
        )
    return measures


def _conditions(request: Request, measurement: Measurement) -> tuple[Condition, ...]:
    return tuple(
        Condition(key=name, code=condition_code(measurement.keys[key_index(measurement, name)], said))
        for name, said in request.where.items()
    )


def check_evaluated(model: bytes | None, job: str, head: str, weights: ModelWeights) -> None:
    """Refuse an evaluation that does not say what is evaluated.

    Raises:
        InvalidTask: no model and no job is given, both without a head, a head without its job, or a model
            and the best weights, which a job has.
    """
    if head and not job:
        raise InvalidTask("head requires job: the job's table says what each label means for it")
    if not head and (model is None) == (not job):
        raise InvalidTask("expected exactly one of model and job: name what is evaluated, and not twice")
    if model is not None and weights is ModelWeights.BEST:
        raise InvalidTask("weights picks those of a job: a model has its own, so leave it out")

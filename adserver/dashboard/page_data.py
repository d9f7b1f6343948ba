"""The data of the pages as plain values: the admin API's answers, with what a picture needs in addition."""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

from adserver.admin.admin_context import AdminContext
from adserver.admin.jobs import curves_of, show_record
from adserver.admin.paging import PageParameters
from adserver.admin.queries import (
    EVALUATIONS_SHOWN,
    QUERIES_SHOWN,
    item,
    show_evaluation,
    show_query,
)
from adserver.admin.read_endpoints import (
    list_datasets,
    list_tasks,
    show_dataset,
    show_helpers,
    show_intake,
)
from adserver.dashboard.forecast_form import ForecastForm
from adserver.dashboard.plan_page import (
    MOST_SHOWN_JOBS,
    MOST_SHOWN_TESTS,
    PlanForm,
    find_task_to_plan,
    tasks_to_plan,
)
from adserver.dashboard.ttl_cache import TtlCache
from adserver.measuring.group_table import MOST_ROWS, describe_gaps, result_tables
from adserver.measuring.result import AggregateResult
from adserver.messages.base import Message
from adserver.messages.query import ResultMessage
from adserver.records.dataset_state import DatasetState
from adserver.records.defaults import MAX_EPOCHS
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.round_figures import RoundFigures
from adserver.records.training_plan import TrainingPlan
from adserver.store.change_token import store_mark
from adserver.store.datasets import Dataset
from adserver.store.jobs import JobStamp
from adserver.store.paging import PageMarker
from adserver.training.cost import job_epsilons
from adserver.views.job import charged_line, describe_best, rise_line
from adserver.views.job_comparison import job_figures, why_not_comparable
from adserver.views.measurement import measurement_rows
from adserver.views.query import (
    Statistic,
    csv_of,
    means_in,
    quantiles_in,
    reading_lines,
)
from adserver.views.reasons import stop_remedy
from maskedlark.canonical import encode
from maskedlark.error_contract import contract
from maskedlark.errors import (
    HelperUnavailable,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ReportReason,
)
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import DatasetBudget
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.runtime.database import database_at_hand
from maskedlark.terminal.budget_view import budget_json, forecast_line, next_line, stopped_lines

ROWS: Final = 25
RECENT: Final = 6
POINTS: Final = 150
SOON_S: Final = 30 * 86_400.0
"""A certificate that ends so soon is worth a look."""
# How long a page waits for a budget or plan before it is shown without; a later look finds it
_PATIENCE_S: Final = 0.15
# Settings of a task that nobody compares
_SAY_LEAST: Final = ("version", "salt")
_STOPPED: Final = (JobState.REFUSED, JobState.FAILED, JobState.WAITING)
# After so long a page is drawn anew though no mark has changed: for the words of a cause, say
_ANYHOW_S: Final = 30.0
BUDGETS_S: Final = 10.0
"""So long a budget is shown before it is computed anew, though rounds were done meanwhile."""
PLANS_S: Final = 60.0
"""The same for the plan of a budget to divide."""
# One that is computed, for up to some seconds, and the next: everyone who may read can ask for any
_MOST_COMPUTED: Final = 2
_T = TypeVar("_T")
Values = dict[str, Any]


@frozen
class Mark:
    """What changes whenever something does that pages show.

    Attributes:
        store: Of tasks, datasets, jobs, queries and budgets.
        intake: Of how many reports there are.
        helpers: Of what is known of both helpers.
        trouble: Of whether they answer.
        budgets: Of the time: a budget that was too young to be computed anew is computed at a later look;
            and of how many plans and forecasts were computed.
    """

    store: Hashable
    intake: Hashable
    helpers: Hashable
    trouble: Hashable
    budgets: Hashable


@frozen
class _BudgetStamp:
    """What changes with a budget.

    Attributes:
        uses: With a job or query that comes or ends.
        rounds: With a round.
    """

    uses: Hashable
    rounds: Hashable

    @classmethod
    def of(cls, jobs: Mapping[tuple[bytes, bytes | None], JobStamp], queries: Hashable = None) -> Self:
        """Return the stamp of a budget that these jobs and queries share."""
        # By `repr`, since jobs on devices have None for a dataset, which does not compare with bytes
        in_order = sorted(jobs.items(), key=repr)
        return cls(
            uses=(tuple((key, one.uses) for key, one in in_order), queries),
            rounds=tuple(one.rounds for _, one in in_order),
        )


class Figures:
    """The values of every page."""

    def __init__(self, site: AdminContext) -> None:
        """Read the values of a running ad server."""
        self.site: Final = site
        self._tasks: Final = site.tasks  # which remembers what it has read
        self._budgets: TtlCache[Values] = TtlCache(lasts_s=BUDGETS_S, threads=1)
        # No cost is fresh by its age: it stands next to the rounds that are done
        self._epsilons: TtlCache[Values] = TtlCache(lasts_s=0.0, threads=1)
        self._plans: TtlCache[Values] = TtlCache(lasts_s=PLANS_S, threads=1, most_making=_MOST_COMPUTED)
        self._forecasts: TtlCache[Values] = TtlCache(lasts_s=BUDGETS_S, threads=1, most_making=_MOST_COMPUTED)
        # A cache of this object's own: one on the class would keep every `Figures` alive
        self._evaluated: Final = lru_cache(maxsize=8 * ROWS)(self._read_evaluated)
        self._costs: Final = lru_cache(maxsize=8 * ROWS)(self._read_cost)

    def close(self) -> None:
        """Compute nothing more."""
        self._budgets.close()
        self._epsilons.close()
        self._plans.close()
        self._forecasts.close()

    def mark(self) -> Mark:
        """Return the current mark with one statement, however large the store is.

        Raises:
            HelperUnavailable: the database does not answer.
        """
        with database_at_hand("the ad server"):
            found = store_mark(self.site.engine)
        counts, sights = self.site.intake(), self.site.sights()
        refused, now_s = tuple(sorted(counts.by_reason().items())), time.monotonic()
        return Mark(
            # Budgets and epsilons are computed after a page was drawn without them: then it is drawn again
            store=(
                found.others,
                self._budgets.made_so_far + self._epsilons.made_so_far,
                int(now_s / _ANYHOW_S),
            ),
            intake=(found.reports, counts.accepted, counts.duplicates, refused),
            helpers=sights,
            trouble=tuple((one.is_well, one.cause) for one in sights),
            budgets=(int(now_s / BUDGETS_S), self._plans.made_so_far + self._forecasts.made_so_far),
        )

    def overview(self) -> Values:
        """Return what an operator looks at first."""
        site, counts = self.site, self.site.jobs.counts()
        tasks = self._list(list_tasks, limit=RECENT)["items"]
        peers = _plain(show_helpers(site))
        stopped = [one for state in _STOPPED for one in site.jobs.page(limit=RECENT, state=state)]
        return {
            "intake": _plain(show_intake(self.site)),
            "reports": site.reports.total(),
            "tasks": tasks,
            "jobs_by_state": {state.value: count for state, count in counts.items()},
            "jobs": [_job_row(one) for one in site.jobs.page(limit=RECENT)],
            "stopped": [_job_row(one) for one in stopped],
            "helpers": peers["helpers"],
            "ending": self._ending(peers["certificates"]),
        }

    def intake(self) -> Values:
        """Return what came in, what was refused and why, and what waits against k."""
        told = _plain(show_intake(self.site))
        refused = [
            {"reason": name, "count": count, **_refusal(name)} for name, count in told["rejected"].items()
        ]
        refused.sort(key=lambda one: -one["count"])
        total = told["accepted"] + told["duplicates"] + sum(told["rejected"].values())
        return {
            **told,
            "refused": refused,
            "reports": self.site.reports.total(),
            "total": total,
            "tasks": self._list(list_tasks, limit=ROWS)["items"],
        }

    def tasks(self, after: str) -> Values:
        """Return a page of tasks."""
        return self._list(list_tasks, limit=ROWS, after=after)

    def task(self, task: str) -> Values:
        """Return one task with its settings."""
        stored = self.site.tasks.find(task)
        settings = json.loads(encode(stored.bundle.task))
        # In the order of the task, which has together what belongs together, and last what says least
        in_order = [one.name for one in fields(Task) if one.name not in ("name", *_SAY_LEAST)]
        counts = self.site.reports.counts(stored.task_id)
        helpers = settings.pop("helpers")
        settings.pop("measurement", None)
        return {
            "measured": measurement_rows(stored.bundle.task.measurement),
            "task_id": stored.task_id.hex(),
            "created_at": stored.created_at,
            "task": stored.bundle.task,
            "counts": counts,
            "settings": {
                name: settings[name] for name in (*in_order, *_SAY_LEAST) if settings.get(name) is not None
            },
            "helpers": [helper["name"] for helper in helpers],
            "datasets": [
                {"dataset_id": one.dataset_id.hex() if one.dataset_id else None, "size": one.size}
                for one in self.site.datasets.of_task(stored.task_id)[-ROWS:]
            ],
        }

    def datasets(self, after: str) -> Values:
        """Return a page of datasets."""
        shown = self._list(list_datasets, limit=ROWS, after=after)
        named = {one["task_id"]: self._name_of(one["task_id"]) for one in shown["items"]}
        return {**shown, "items": [{**one, "task": named[one["task_id"]]} for one in shown["items"]]}

    def _name_of(self, task_id: str) -> str:
        task = self._tasks.task(bytes.fromhex(task_id))
        return task.name if task else task_id[:12]

    def dataset(self, dataset: str) -> Values:
        """Return one dataset, its dropped reports, and its jobs."""
        shown = _plain(show_dataset(self.site, dataset))
        found = self.site.datasets.find(dataset)
        jobs = self.site.jobs.of_task(found.task_id, [found.dataset_id])
        dropped = [
            {"role": role, "reason": reason, "count": count, **_refusal(reason)}
            for role, reasons in enumerate(shown["dropped"])
            for reason, count in reasons.items()
        ]
        # The newest jobs first, as in every list
        return {**shown, "dropped": dropped, "jobs": [_job_row(one) for one in jobs[: -ROWS - 1 : -1]]}

    def jobs(self, after: str, state: str) -> Values:
        """Return a page of jobs."""
        if state and state not in set(JobState):
            raise InvalidTask(f"state is {state!r}: expected one of {', '.join(JobState)}")
        wanted = JobState(state) if state else None
        counts = self.site.jobs.counts()
        # One more than is shown tells whether there is a next page
        found = self.site.jobs.page(limit=ROWS + 1, before=PageMarker.read(after), state=wanted)
        shown, until = found[:ROWS], time.monotonic() + _PATIENCE_S
        items, figures = [_job_row(one) for one in shown], map(self._figures_of, shown)
        epsilons = [self._epsilons_of(one, max(0.0, until - time.monotonic())) for one in shown]
        rows = [
            (
                job,
                {
                    **item,
                    **one,
                    "epsilons": spent,
                    "eval_set": (job.eval_set_digest or b"").hex(),
                    "dataset": (_dataset_of(job) or b"").hex(),
                },
            )
            for job, item, one, spent in zip(shown, items, figures, epsilons, strict=True)
            if any(one.values())
        ]
        return {
            "items": items,
            "compared": [row for _, row in rows],
            "not_comparable": why_not_comparable((_dataset_of(job), job.eval_set_digest) for job, _ in rows),
            "next": _next(found, lambda one: PageMarker(at=one.submitted_at_s, key=one.job_id).cursor),
            "state": wanted.value if wanted else "",
            "counts": {one.value: count for one, count in counts.items()},
            "total": sum(counts.values()),
        }

    def _figures_of(self, job: JobRecord) -> Values:
        """Return what jobs are compared by, without the epsilons, whose computation takes long."""
        return job_figures(job, *self._evaluated_of(job))

    def _evaluated_of(self, job: JobRecord) -> tuple[RoundFigures | None, RoundFigures | None]:
        """Return a job's last and best figures."""
        # The untrained model is evaluated while no round is done: what was read before that is not kept.
        read = self._evaluated if job.rounds_done else self._read_evaluated
        return read(job.job_id, job.rounds_done)

    def _epsilons_of(self, job: JobRecord, wait_s: float) -> Values | None:
        """Return what a job's rounds cost, and of how many rounds that is: of fewer while it runs.

        Empty until it is computed; None without noise or helpers.
        """
        plan, rounds = job.plan, job.rounds_done
        if isinstance(plan, LocalPlan) or plan.task.mechanism is Mechanism.NONE:
            return None

        def add_up() -> Values:
            epsilons = job_epsilons(plan, rounds)
            return {"rounds": rounds, "ad_server": epsilons.ad_server, "colluding": epsilons.colluding}

        # By state, too: of a job that has ended, no value of its earlier rounds is shown meanwhile
        key = (job.job_id, job.state)
        return self._epsilons.soon(key, add_up, wait_s=wait_s, stamp=rounds) or {}

    def _read_evaluated(self, job_id: bytes, _: int) -> tuple[RoundFigures | None, RoundFigures | None]:
        """Return a job's last and best figures, which stay the same until its next round."""
        last = self.site.jobs.last_evaluated(job_id)
        return last, self.site.jobs.best_evaluated(job_id) if last else None

    def job(self, job: str) -> Values:
        """Return one job: its curves, why it stopped, and what to do next."""
        found = self.site.jobs.find(job)
        shown = _plain(show_record(self.site, found))
        last, best = self._evaluated_of(found)
        is_of_dataset = isinstance(found.plan, TrainingPlan)
        first = self.site.jobs.figures_at(found.job_id, [0]) if is_of_dataset else ()
        # The last weights are the best ones otherwise
        better = best if is_of_dataset and best != last else None
        return {
            **shown,
            "evaluated_after": last and last.rounds_done,
            "best": better and {"rounds_done": better.rounds_done, "line": describe_best(better)},
            # As `adserver job show` has them
            "warning": rise_line(first[0], last) if first else "",
            "is_thinned": found.rounds_done > POINTS,
            "share": _share(found),
            "charged_line": charged_line(found),
            "has_encoder": found.plan.task is not None and found.plan.task.encoder is not None,
            "remedy": stop_remedy(shown["reason"] or ""),
            "curves": _plain(curves_of(self.site, found, POINTS))["points"],
        }

    def budgets(self, after: str) -> Values:
        """Return a page of budgets; those not computed yet are left for a later request."""
        found = self.site.datasets.page(limit=ROWS + 1, before=PageMarker.read(after))
        committed = [one for one in found[:ROWS] if one.state is DatasetState.COMMITTED]
        # One patience for the page, not one for each of its rows
        until, stamps = time.monotonic() + _PATIENCE_S, self._stamps(committed)
        rows = [
            {
                "dataset_id": (one.dataset_id or b"").hex(),
                "size": one.size,
                "budget": self._budget(one, max(0.0, until - time.monotonic()), stamps[one.handle]),
            }
            for one in committed
        ]
        people = [
            {"task_id": one.task_id.hex(), "name": one.bundle.task.name}
            for one in self.site.tasks.page(limit=ROWS)
            if one.bundle.task.updates is not None
        ]
        return {
            "items": rows,
            "people": people,
            "next": _next(found, lambda one: PageMarker(at=one.created_at, key=one.handle).cursor),
        }

    def budget(self, dataset: str, typed: Mapping[str, str]) -> Values:
        """Return one dataset's budgets, their charges, and the effect of a planned job.

        In place of the effect stands why the job is not possible, and nothing while it is computed; the
        form keeps what was typed.
        """
        try:
            found = self.site.datasets.find(dataset)
        # One page for both kinds of budget: an id is a dataset's, or the task's of people
        except JobRefused as refusal:
            return {**self._of_people(dataset, refusal), "typed": typed}
        jobs = self.site.jobs.of_task(found.task_id, [found.dataset_id])
        until, stamp = time.monotonic() + _PATIENCE_S, self._stamps([found])[found.handle]
        forecast: str | None = ""
        form, effect = None, None
        try:
            if form := ForecastForm.read(typed):
                effect = self._forecast(found, form, stamp)
                forecast = None if effect is None else effect["line"]
        except InvalidTask as refusal:
            forecast = str(refusal)
        told = effect if effect is not None and "planned" in effect else None
        if told is None:
            told = self._budget(found, max(0.0, until - time.monotonic()), stamp)
        shown = self._budget_shown(found.dataset_id or b"", told, jobs)
        return {**shown, "form": form, "forecast": forecast, "typed": typed}

    def _forecast(self, dataset: Dataset, form: ForecastForm, stamp: _BudgetStamp) -> Values | None:
        """Return a budget with a planned job's effect, or only why there is none; None until it is there."""

        def compute() -> Values:
            try:
                of = self.site.budgets.of(dataset, form.job(self.site, dataset))
            # The database is away, which is no refusal of the form
            except HelperUnavailable:
                raise
            except MaskedLarkError as refusal:
                return {"line": str(refusal)}
            return {**_describe_budget(of), "line": "" if of.forecast is None else forecast_line(of.forecast)}

        return self._keep_budget(
            self._forecasts, (dataset.handle, form), compute, wait_s=_PATIENCE_S, stamp=stamp
        )

    def plan(self, form: PlanForm) -> Values:
        """Return what each of several jobs and tests gets of a budget, before anything is collected."""
        tasks = tasks_to_plan(self.site)
        task = find_task_to_plan(self.site, form.task) if form.task else next(iter(tasks), None)
        if task is not None and task not in tasks:
            tasks = [task, *tasks]
        found, filled = None, form
        if task is not None:
            filled = form.fill(self.site, task)
            found = self._plans.soon(
                (task.task_id, filled), lambda: filled.divide(self.site, task), wait_s=_PATIENCE_S
            )
        return {
            "tasks": [{"task_id": one.task_id.hex(), "name": one.name} for one in tasks],
            "task": task,
            "form": form,
            "reports": filled.reports,
            "weights": filled.weights,
            "most": {"jobs": MOST_SHOWN_JOBS, "tests": MOST_SHOWN_TESTS, "epochs": MAX_EPOCHS},
            "found": found,
        }

    def _of_people(self, task: str, refusal: JobRefused) -> Values:
        try:
            stored = self.site.tasks.find(task)
        # The page lists datasets: that none is meant says more
        except JobRefused:
            raise refusal from None
        if stored.bundle.task.updates is None or refusal.reason is not JobReason.UNKNOWN_DATASET:
            raise refusal
        told = self._keep_budget(
            self._budgets,
            ("people", stored.task_id),
            lambda: _describe_budget(self.site.budgets.of_people(stored.bundle.task)),
            wait_s=_PATIENCE_S,
            stamp=_BudgetStamp.of(self.site.jobs.stamps([stored.task_id])),
        )
        return self._budget_shown(stored.task_id, told, self.site.jobs.of_task(stored.task_id, [None]))

    def _budget_shown(
        self,
        identifier: bytes,
        told: Values | None,
        jobs: Iterable[JobRecord],
    ) -> Values:
        """Return a budget with the names of what uses it."""
        names = {one.job_id.hex(): one.name for one in jobs}
        others = [one["id"] for one in (told["uses"] if told else []) if one["id"] not in names]
        asked = self.site.queries.some([bytes.fromhex(one) for one in others])
        return {
            "dataset_id": identifier.hex(),
            "budget": told,
            "names": names,
            "queries": {one.spec.query_id.hex(): _plain(item(self.site, one)) for one in asked},
        }

    def _budget(self, dataset: Dataset, wait_s: float, stamp: _BudgetStamp) -> Values | None:
        return self._keep_budget(
            self._budgets,
            dataset.handle,
            lambda: _describe_budget(self.site.budgets.of(dataset)),
            wait_s=wait_s,
            stamp=stamp,
        )

    def _keep_budget(
        self,
        cache: TtlCache[Values],
        key: Hashable,
        read: Callable[[], Values],
        *,
        wait_s: float,
        stamp: _BudgetStamp,
    ) -> Values | None:
        """Return a budget, and since when its jobs have gone on, if they have."""

        def add_up() -> Values:
            # Read before: what happens meanwhile may be in the sum or not
            read_at = self.site.clock()
            return {**read(), "stamp": stamp, "read_at": read_at}

        # A new job or query counts at once: no sum without it is shown, not even meanwhile
        kept = cache.soon((key, stamp.uses), add_up, wait_s=wait_s, stamp=stamp)
        if kept is None:
            return None
        return {**kept, "as_of": None if kept["stamp"] == stamp else kept["read_at"]}

    def _stamps(self, found: Sequence[Dataset]) -> dict[bytes, _BudgetStamp]:
        """Map each handle to what changes with a dataset's budget: its task's jobs, and its queries."""
        tasks = sorted({one.task_id for one in found})
        jobs, queries = self.site.jobs.stamps(tasks), self.site.queries.stamps(tasks)
        of_people = set(filter(self._is_of_people, tasks))

        def stamp(dataset: Dataset) -> _BudgetStamp:
            # All datasets of a task of people share one budget
            def is_of(task_id: bytes, dataset_id: bytes | None) -> bool:
                return task_id == dataset.task_id and (
                    task_id in of_people or dataset_id == dataset.dataset_id
                )

            return _BudgetStamp.of(
                {key: sums for key, sums in jobs.items() if is_of(*key)},
                frozenset(each for each in queries.items() if is_of(*each[0])),
            )

        return {one.handle: stamp(one) for one in found}

    def _is_of_people(self, task_id: bytes) -> bool:
        """Return whether a task's datasets share one budget, that of a person."""
        task = self._tasks.task(task_id)
        return task is not None and task.unit is PrivacyUnit.USER

    def queries(self, after: str) -> Values:
        """Return a page of queries and evaluations."""
        found = self.site.queries.page(
            limit=ROWS + 1, before=PageMarker.read(after), kinds=(*QUERIES_SHOWN, *EVALUATIONS_SHOWN)
        )
        return {
            "items": [
                {**_plain(item(self.site, one)), "cost": self._costs(one.spec)} for one in found[:ROWS]
            ],
            "next": _next(found, lambda one: PageMarker(at=one.asked_at, key=one.spec.query_id).cursor),
        }

    def _read_cost(self, spec: AnyQuery) -> Epsilons:
        """Return what one query costs alone, which never changes; infinite where its task adds no noise."""
        task = self.site.tasks.find(spec.task_id.hex()).bundle.task
        return spent(spec.charges(task, 1), task.delta)

    def query(self, query: str) -> Values:
        """Return one query or evaluation with its stored answer."""
        kind = self.site.queries.find_any(query).spec.kind
        if kind in EVALUATIONS_SHOWN:
            return _plain(show_evaluation(self.site, query))
        shown = show_query(self.site, query)
        return {**_plain(shown), **({} if shown.result is None else self._read_off(shown.result))}

    def groups_csv(self, query: str) -> tuple[str, bytes]:
        """Return a query's id and its groups as the .csv file that commands write, with all statistics.

        Raises:
            JobRefused(UNKNOWN_QUERY): it is no query with groups, or its answer is not kept here.
            HelperUnavailable: the database does not answer.
        """
        with database_at_hand("the ad server"):
            shown = show_query(self.site, query)
        if shown.kind == DiscoverySpec.kind:
            raise JobRefused(
                JobReason.UNKNOWN_QUERY,
                "a discovery has no groups: open the query that it was made for, which has them",
            )
        if shown.result is None:
            raise JobRefused(
                JobReason.UNKNOWN_QUERY,
                "its answer is not kept here: ask the helpers for the same one, at no cost, with "
                f"`adserver aggregate --again {shown.query_id[:12]} --out groups.csv`",
            )
        result = shown.result.value()
        return shown.query_id, csv_of(result, _statistics_in(result))

    def _read_off(self, message: ResultMessage) -> Values:
        """Return the table of a query's groups as commands print it, and how to read its intervals."""
        result = message.value()
        statistics = _statistics_in(result)
        histograms = {column.shown_value for column in result.columns if column.bucket is not None}
        # The page has histograms with their intervals drawn
        [table] = result_tables(
            result,
            {one.name: one.estimates(result) for one in statistics},
            is_all_shown=False,
            without=histograms,
            where="the CSV file has all",
        )
        return {
            "keys": len(result.group_by),
            "names": table.head,
            "groups": table.rows,
            "gaps": {
                value: describe_gaps(value, (one for one in result.columns if one.shown_value == value))
                for value in histograms
            },
            "most_rows": MOST_ROWS,
            "reading": [*table.notes, *reading_lines(result, statistics)],
        }

    def helpers(self) -> Values:
        """Return both helpers, their keys, and the certificates between the parties."""
        return {**_plain(show_helpers(self.site)), "now": self.site.clock(), "soon_s": SOON_S}

    def _ending(self, certificates: list[Values]) -> list[Values]:
        """Return the certificates that expire soon."""
        until = self.site.clock() + SOON_S
        return [one for one in certificates if one["ends_at"] < until]

    def _list(self, read: Callable[..., Message], *, limit: int, after: str = "") -> Values:
        return _plain(read(self.site, PageParameters(limit=limit, after=after)))


def _plain(message: Message) -> Values:
    """Return a message of the admin API as the values of a template."""
    return message.model_dump(mode="json")


def _dataset_of(job: JobRecord) -> bytes | None:
    """Return the id of a job's dataset; None of a job on devices."""
    return job.plan.job.dataset_id if isinstance(job.plan, TrainingPlan) else None


def _job_row(job: JobRecord) -> Values:
    """Return a job as a row of a table, without the epsilons, whose computation takes long."""
    return {
        "job_id": job.job_id.hex(),
        "name": job.name,
        "note": job.note,
        "task": job.task_name,
        "state": job.state.value,
        "submitted_at": job.submitted_at_s,
        "rounds": job.rounds,
        "rounds_done": job.rounds_done,
        "updates": job.updates,
        "share": _share(job),
        "reason": job.stop.reason if job.stop else "",
        "cause": job.stop.cause if job.stop else "",
    }


def _statistics_in(result: AggregateResult) -> tuple[Statistic, ...]:
    return (*means_in(result), *quantiles_in(result))


def _describe_budget(budget: DatasetBudget) -> Values:
    stopped = stopped_lines(budget)
    return {**budget_json(budget), "next_line": next_line(budget), "stopped_lines": stopped, "as_of": None}


def _share(job: JobRecord) -> float:
    """Return the part of its rounds that a job has done; 0 of a job without rounds."""
    return job.rounds_done / job.rounds if job.rounds else 0.0


def _next(found: Sequence[_T], cursor: Callable[[_T], str]) -> str | None:
    """Return where the next page begins; None after the last one."""
    return cursor(found[ROWS - 1]) if len(found) > ROWS else None


def _refusal(reason: str) -> Mapping[str, str]:
    """Explain a report's refusal and its remedy."""
    known = next((one for one in ReportReason if one.value == reason), None)
    if known is None:
        return {"meaning": "", "remedy": ""}
    return {"meaning": known.meaning, "remedy": contract(known).remedy}

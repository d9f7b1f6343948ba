"""Queries and evaluations of this machine's ad server: planned, put to both helpers, and kept."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any, TypeVar

from sqlalchemy import Engine

from adserver.budgets.asked_epsilon import epsilon_left
from adserver.budgets.reservations import Budgets
from adserver.measuring.evaluation_metrics import Histogram
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.evaluator import (
    Evaluator,
    histogram_of,
    plan_evaluation,
    weights_digest_of,
)
from adserver.measuring.measurer import Measurer, check_words
from adserver.measuring.query_runner import Asking
from adserver.measuring.request import check_evaluated, read_request
from adserver.measuring.result import AggregateResult
from adserver.peers.client import HelperClient
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import Backoff, with_retries
from adserver.records.asked_query import ChosenId, PlannedQuery
from adserver.records.defaults import DEFAULT_BINS, QUERY_ID_BYTES
from adserver.records.exported_model import ModelWeights
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.jobs import JobStore
from adserver.store.queries import QueryStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.model.heads import Head, Heads, TrainedLoss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.task import Task
from maskedlark.runtime.keyed_lock import KeyedLock

_AskingT = TypeVar("_AskingT", bound=Asking[Any, Any])


@frozen
class _OpenedOnDemand:
    """A helper that is connected to once it is asked: kept answers are read without."""

    role: int
    open_both: Callable[[], tuple[HelperClient, HelperClient]]

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        """Ask the helper; see `HelperClient.run_query`."""
        return self.open_both()[self.role].run_query(query, beside, length, cancelled=cancelled)


class LocalMeasuring:
    """The measurements of an ad server. Safe to share between threads."""

    def __init__(
        self,
        engine: Engine,
        helpers: Callable[[], tuple[HelperClient, HelperClient]],
        backoff: Backoff,
        export_job: Callable[[str, ModelWeights], bytes],
        loss_of_job: Callable[[str], TrainedLoss | None],
    ) -> None:
        """Measure with helpers, which are opened once one is asked.

        By the start of a job's id, `export_job` returns its model and `loss_of_job` what it minimises.
        """
        self._engine = engine
        self._open_helpers = helpers
        self._backoff = backoff
        self._export_job = export_job
        self._loss_of_job = loss_of_job
        self._turns = KeyedLock()
        self._queries = QueryStore(engine)

    def aggregate(
        self,
        *,
        values: Sequence[str] = (),
        histograms: Sequence[str] = (),
        group_by: Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Mapping[str, Sequence[str | int] | Mapping[str, int]] | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: str = "",
        query_id: str = "",
    ) -> AggregateResult:
        """Sum values over groups of a dataset's reports."""
        # Plain values: an id stands for the JSON of what was asked, also where it came in numpy's types
        asked: dict[str, Any] = {
            "values": list(values),
            "histograms": list(histograms),
            "group_by": list(group_by),
            "where": {name: str(said) for name, said in (where or {}).items()},
            "domains": dict(domains or {}),
            "discover": discover,
            "roll_up": roll_up,
            "epsilon": None if epsilon is None else float(epsilon),
            "dataset": dataset,
        }
        chosen = ChosenId.of(query_id or _new_id(), "query", asked)
        # Two requests under one id at the same time would both find nothing stored, and both be charged
        with self._turns.hold(chosen.query_id):
            # Looked for first: what was asked before is answered as then, whatever has changed since
            if before := self._queries.before(chosen, QuerySpec):
                # Of its own dataset: an empty name may mean another one by now
                return self.measurer(self._dataset(before)).find_repeated(before, chosen)
            found = DatasetStore(self._engine).find(dataset)
            about = {name: said for name, said in asked.items() if name != "dataset"}
            measurer = self.measurer(found)
            request = read_request(measurement_of(measurer.task), **about, encoder=measurer.encoder)
            check_words(request, task=measurer.task, encoder=measurer.encoder)
            return measurer.measure(
                request,
                chosen,
                require_helpers=self._require_helpers,
                require_room=partial(self._require_room, found, chosen),
            )

    def evaluate(
        self,
        model: bytes | None = None,
        *,
        job: str = "",
        head: str = "",
        weights: ModelWeights = ModelWeights.LATEST,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
        query_id: str = "",
    ) -> EvaluationResult:
        """Evaluate an ONNX file, or a job's weights, on a dataset's reports."""
        # Loads onnx, which light commands do without.
        from adserver.training.model_file import check_reading, without_notes
        from adserver.training.pipeline import without_encoder

        check_evaluated(model, job, head, weights)
        epsilon = None if epsilon is None else float(epsilon)
        asked = {"job": job, "bins": bins, "epsilon": epsilon, "dataset": dataset}
        if head:
            asked["head"] = head
        # Left out where it means what it always meant, so that ids of before keep their digests
        if weights is not ModelWeights.LATEST:
            asked["weights"] = weights
        files = () if model is None else (model,)
        chosen = ChosenId.of(query_id or _new_id(), "evaluation", asked, *files)
        with self._turns.hold(chosen.query_id):
            if before := self._queries.before(chosen, EvaluationSpec):
                return self.evaluator(self._dataset(before)).find_repeated(before, chosen)
            found = DatasetStore(self._engine).find(dataset)
            task = self._task(found)
            if model is None:
                # Exported once here, so that plan and answer are of the same weights though the job goes on
                evaluated = self._export_job(job, weights)
            else:
                evaluated = without_encoder(
                    without_notes(model), num_features=task.num_features, encoder=task.encoder
                )
            of_head = self._head(job, head)
            planned = plan_evaluation(
                evaluated,
                task=task,
                dataset=found,
                query_id=chosen.query_id,
                epsilon=epsilon,
                num_bins=bins,
                head=of_head,
            )
            if of_head is None:  # those are logits
                check_reading(evaluated, num_features=task.num_features)
            self._require_helpers()
            return self.evaluator(found).evaluate(planned, chosen)

    def _head(self, job: str, name: str) -> Head | None:
        """Return the head of a job to evaluate; None of a job of one loss, or of a model by itself.

        Raises:
            InvalidTask: the job has no such head, or several and none is named.
        """
        loss = self._loss_of_job(job) if job else None
        if isinstance(loss, Heads):
            return loss.find_head(name)
        if name:
            raise InvalidTask(f"head is {name[:80]!r}, and the job has one loss and no heads: leave head out")
        return None

    def repeat_aggregate(self, query: str) -> AggregateResult:
        """Return the answer to an earlier query again."""
        planned = self._queries.find(query, QuerySpec)
        return self.measurer(self._dataset(planned)).again(planned)

    def repeat_evaluate(self, query: str) -> EvaluationResult:
        """Return an earlier evaluation again."""
        planned = self._queries.find(query, EvaluationSpec)
        return self.evaluator(self._dataset(planned)).again(planned)

    def histogram(self, query: str, model: bytes) -> Histogram:
        """Return the records by label and score bin of an earlier evaluation of a model.

        Raises:
            InvalidTask: it was of another model or other weights, or its noise hides how predictions add up.
        """
        planned = self._queries.find(query, EvaluationSpec)
        dataset = self._dataset(planned)
        parsed = parse(model, num_features=self._task(dataset).num_features)
        if (planned.spec.model_digest, planned.spec.weights_digest) != (
            parsed.digest,
            weights_digest_of(parsed),
        ):
            raise InvalidTask(
                f"evaluation {query!r} was of another model, or of other weights: evaluate the same weights "
                "of the job first, with `adserver evaluate --job ID --weights latest` or `best`"
            )
        result = self.evaluator(dataset).again(planned)
        answer = self._queries.answer(planned.spec.query_id)
        if answer is None:
            raise AssertionError("an evaluation that was read has an answer")
        if not result.shows_mean:
            raise InvalidTask(
                f"evaluation {query!r} does not tell how the predictions add up at its noise, so a model "
                "calibrated by it would follow the noise: evaluate with a larger epsilon, or calibrate on a "
                "panel (--panel)"
            )
        return histogram_of(planned, answer)

    def measurer(self, dataset: Dataset) -> Measurer:
        """Return the measurer of one dataset."""
        return self._asking(Measurer, dataset, encoder=TaskStore(self._engine).encoder(dataset.task_id))

    def evaluator(self, dataset: Dataset) -> Evaluator:
        """Return the evaluator of one dataset."""
        jobs = JobStore(self._engine, time.time)
        return self._asking(
            Evaluator,
            dataset,
            was_trained_on=jobs.has_trained(dataset.task_id, dataset.dataset_id or b""),
        )

    def _require_room(self, dataset: Dataset, chosen: ChosenId, charges: Sequence[Charge]) -> None:
        """Refuse a discovery whose query the budget would have no room for: it would be charged for nothing.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): with what is left.
        """
        task = self._task(dataset)
        # One that was charged before is among what is held, and its query has its room already
        if task.mechanism is Mechanism.NONE or self._queries.discovery_before(chosen.query_id) is not None:
            return
        held = Budgets(engine=self._engine, clock=time.time).reservations_of_dataset(dataset)
        together = spent([*held, *charges], task.delta)
        if together.ad_server > task.epsilon or together.colluding > task.collusion_epsilon:
            left = epsilon_left(task, held)
            raise JobRefused(
                JobReason.BUDGET_EXHAUSTED,
                f"the discovery and its query do not fit together, and neither was asked: the budgets leave "
                f"about {left:g}" + (f", so ask for epsilon {0.9 * left:.2g} or less" if left else ""),
            )

    def _require_helpers(self) -> None:
        """Refuse a new query, which nothing has stored yet, while a helper is away or not well.

        The other helper would charge it.

        Raises:
            HelperUnavailable: a helper did not answer in time, or says that it refuses all calls.
        """
        for helper in self._open_helpers():
            try:
                why_not = with_retries(helper.status, self._backoff).not_well
            except HelperUnavailable as away:
                raise HelperUnavailable(
                    f"{away}; the query was not asked, and this attempt charged nothing: start both helpers, "
                    "then send it again",
                    retry_after_s=away.retry_after_s,
                ) from None
            except MaskedLarkError:
                continue  # it answers: what it says of the query follows
            if why_not:
                raise HelperUnavailable(
                    f"{why_not}; the query was not asked, and this attempt charged nothing: send it again "
                    "once both helpers are well"
                )

    def _asking(self, kind: type[_AskingT], dataset: Dataset, **more: Any) -> _AskingT:
        return kind(
            **more,
            helpers=(
                _OpenedOnDemand(role=0, open_both=self._open_helpers),
                _OpenedOnDemand(role=1, open_both=self._open_helpers),
            ),
            task=self._task(dataset),
            dataset=dataset,
            store=self._queries,
            clock=time.time,
            backoff=self._backoff,
        )

    def _dataset(self, planned: PlannedQuery[Any]) -> Dataset:
        return DatasetStore(self._engine).find(planned.spec.dataset_id.hex())

    def _task(self, dataset: Dataset) -> Task:
        return TaskStore(self._engine).find(dataset.task_id.hex()).bundle.task


def _new_id() -> str:
    return os.urandom(QUERY_ID_BYTES).hex()

"""Measuring from Python: aggregates and evaluations."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, TypeVar

from adserver.client.connection import Connection
from adserver.client.job import Job, LocalAdServer
from adserver.client.remote_measuring import aggregate, evaluate, read_aggregate, read_evaluation
from adserver.measuring.domains import codes_by_key
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.evaluator import Evaluator, plan_evaluation
from adserver.measuring.measurer import Measurer
from adserver.measuring.query_runner import Asking
from adserver.measuring.request import Request
from adserver.measuring.result import AggregateResult
from adserver.records.asked_query import ChosenId, PlannedQuery, chosen_id
from adserver.records.defaults import DEFAULT_BINS, QUERY_ID_BYTES
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.queries import QueryStore
from adserver.training.as_onnx import as_onnx
from maskedlark.errors import InvalidTask
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec

_AskingT = TypeVar("_AskingT", bound=Asking[Any, Any])


class Measuring(Connection):
    """What a client asks of datasets."""

    def aggregate(
        self,
        *values: str,
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
        """Sum values over groups of a dataset's reports. It is charged to the dataset's budget.

        Args:
            values: Names of declared values, or "count".
            histograms: Names of declared values with buckets.
            group_by: Names of declared keys, the coarsest first.
            where: For keys, the category or code that summed reports have.
            domains: For keys, the categories or codes that get cells of their own, or {"first": code,
                "last": code}; the default is all of a key with a size.
            discover: Find the codes of other keys by a private release first.
            roll_up: Release the coarser levels too, up to the total, so that parts add to the whole.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.
            query_id: 32 hex digits of your own choice, of 16 random bytes: the same request under the same
                id has the same answer, and is charged once. By default a new one.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id.
            MaskedLarkError: what is wrong with the request, or why it is refused; `HelperUnavailable` may be
                tried again.
        """
        asked: dict[str, Any] = {
            "values": list(values),
            "histograms": list(histograms),
            "group_by": list(group_by),
            "where": {name: str(said) for name, said in (where or {}).items()},
            "domains": {name: _plain(said) for name, said in (domains or {}).items()},
            "discover": discover,
            "roll_up": roll_up,
            "epsilon": None if epsilon is None else float(epsilon),
            "dataset": dataset,
        }
        if self._far is not None:
            return aggregate(self._far, asked, query_id=query_id, backoff=self._backoff)
        chosen = chosen_id(query_id, "query", asked) if query_id else None
        with self._exclusively(chosen):
            before = chosen and QueryStore(self._engine).before(chosen, QuerySpec)
            if chosen and before:
                return self.measurer(self._dataset(before)).repeated(before, chosen)
            found = DatasetStore(self._engine).find(dataset)
            request = Request(
                values=values,
                histograms=tuple(histograms),
                group_by=tuple(group_by),
                where=asked["where"],
                domains=codes_by_key(asked["domains"], measurement_of(self._task(found).bundle.task)),
                is_discovered=discover,
                is_rolled_up=roll_up,
                epsilon=epsilon,
            )
            return self.measurer(found).measure(request, chosen)

    def evaluate(
        self,
        model: Any = None,
        *,
        job: str = "",
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
        query_id: str = "",
    ) -> EvaluationResult:
        """Evaluate a classifier on a dataset's reports: loss, accuracy, ROC and PR curves, calibration.

        It is charged to the dataset.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted model of scikit-learn.
            job: Instead of a model: a job, by the start of its id, whose latest weights are evaluated.
            bins: How many score bins; more of them bear more noise.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.
            query_id: As of `aggregate`.

        Raises:
            InvalidTask: neither a model nor a job, or both.
            MaskedLarkError: as `aggregate`.
        """
        if (model is None) == (not job):
            raise InvalidTask("expected exactly one of model and job")
        epsilon = None if epsilon is None else float(epsilon)
        asked = {"job": job, "bins": index(bins), "epsilon": epsilon, "dataset": dataset}
        encoded = None if model is None else self._encode_model(model, dataset)
        if self._far is not None:
            return evaluate(self._far, asked, encoded, query_id=query_id, backoff=self._backoff)
        files = () if encoded is None else (encoded,)
        chosen = chosen_id(query_id, "evaluation", asked, *files) if query_id else None
        with self._exclusively(chosen):
            before = chosen and QueryStore(self._engine).before(chosen, EvaluationSpec)
            if chosen and before:
                return self.evaluator(self._dataset(before)).repeated(before, chosen)
            found = DatasetStore(self._engine).find(dataset)
            planned = plan_evaluation(
                self._export_trained(job) if encoded is None else encoded,
                task=self._task(found).bundle.task,
                dataset=found,
                query_id=chosen.query_id if chosen else os.urandom(QUERY_ID_BYTES),
                epsilon=epsilon,
                num_bins=bins,
            )
            return self.evaluator(found).evaluate(planned, chosen)

    def again(self, query: str) -> AggregateResult:
        """Return the stored answer to a query, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        if self._far is not None:
            return read_aggregate(self._far, query)
        planned = QueryStore(self._engine).find(query, QuerySpec)
        return self.measurer(self._dataset(planned)).again(planned)

    def evaluate_again(self, query: str) -> EvaluationResult:
        """Return the stored answer to an evaluation, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        if self._far is not None:
            return read_evaluation(self._far, query)
        planned = QueryStore(self._engine).find(query, EvaluationSpec)
        return self.evaluator(self._dataset(planned)).again(planned)

    def _encode_model(self, model: Any, dataset: str) -> bytes:
        """Encode a model as an ONNX file, as wide as a dataset's reports."""
        if isinstance(model, bytes):
            return model
        if self._far is not None:
            task = self._far.task(self._far.dataset(dataset).task_id.hex())
        else:
            task = self._task(DatasetStore(self._engine).find(dataset))
        return as_onnx(model, task.bundle.task.num_features)

    def _export_trained(self, job: str) -> bytes:
        """Return a job's model with its latest weights."""
        at = LocalAdServer(engine=self._engine, data=self._data)
        return Job(job_id=at.jobs.find(job).job_id, at=at).export()

    @contextmanager
    def _exclusively(self, chosen: ChosenId | None) -> Iterator[None]:
        """Let nobody else ask under the same id meanwhile: who comes second finds the answer kept."""
        if chosen is None:
            yield
            return
        with self._turns.hold(chosen.query_id):
            yield

    def _dataset(self, planned: PlannedQuery[Any]) -> Dataset:
        return DatasetStore(self._engine).find(planned.spec.dataset_id.hex())

    def evaluator(self, dataset: Dataset) -> Evaluator:
        """Return the evaluator of one dataset."""
        return self._asking(Evaluator, dataset)

    def measurer(self, dataset: Dataset) -> Measurer:
        """Return the measurer of one dataset."""
        return self._asking(Measurer, dataset)

    def _asking(self, kind: type[_AskingT], dataset: Dataset) -> _AskingT:
        return kind(
            helpers=self._helpers,
            task=self._task(dataset).bundle.task,
            dataset=dataset,
            store=QueryStore(self._engine),
            clock=time.time,
            backoff=self._backoff,
        )


def _plain(domain: Sequence[str | int] | Mapping[str, int]) -> list[str | int] | dict[str, int]:
    """Convert a domain to JSON's types, also from numpy's numbers."""
    if isinstance(domain, Mapping):
        return dict(domain)
    return [one if isinstance(one, str | float | bool) else index(one) for one in domain]

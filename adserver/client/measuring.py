"""Measuring from Python: aggregates and evaluations."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from adserver.client.connection import Connection
from adserver.client.far_measuring import aggregated, aggregated_before, evaluated, evaluated_before
from adserver.measuring.asking import Asking
from adserver.measuring.domains import distinct_codes
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.evaluator import Evaluator, plan_evaluation
from adserver.measuring.measurer import Measurer
from adserver.measuring.request import Request
from adserver.measuring.result import AggregateResult
from adserver.records.asked_query import QUERY_ID_BYTES, PlannedQuery
from adserver.records.defaults import DEFAULT_BINS
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.queries import QueryStore
from adserver.training.as_onnx import as_onnx
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec, key_index, measurement_of

_AskingT = TypeVar("_AskingT", bound=Asking)


class Measuring(Connection):
    """What a client asks of datasets."""

    def aggregate(
        self,
        *values: str,
        histograms: Sequence[str] = (),
        group_by: Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Mapping[str, Sequence[str | int]] | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> AggregateResult:
        """Sum values over groups of a dataset's reports. It is charged to the dataset's budget.

        Args:
            values: Names of declared values, or "count".
            histograms: Names of declared values with buckets.
            group_by: Names of declared keys, the coarsest first.
            where: For keys, the category or code that summed reports have.
            domains: For keys, the categories or codes that get cells of their own; the default is all of a
                key with a size.
            discover: Find the codes of other keys by a private release first.
            roll_up: Release the coarser levels too, up to the total, so that parts add to the whole.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.

        Raises:
            MaskedLarkError: what is wrong with the request, or why it is refused; `HelperUnavailable` may be
                tried again.
        """
        if self._far is not None:
            return aggregated(
                self._far,
                values=values,
                histograms=tuple(histograms),
                group_by=tuple(group_by),
                where=dict(where or {}),
                domains={name: list(listed) for name, listed in (domains or {}).items()},
                discover=discover,
                roll_up=roll_up,
                epsilon=epsilon,
                dataset=dataset,
            )
        found = DatasetStore(self._engine).find(dataset)
        task = self._task(found)
        keys = measurement_of(task.bundle.task)
        request = Request(
            values=values,
            histograms=tuple(histograms),
            group_by=tuple(group_by),
            where={name: str(said) for name, said in (where or {}).items()},
            domains={
                name: distinct_codes([keys.keys[key_index(keys, name)].code(str(one)) for one in listed])
                for name, listed in (domains or {}).items()
            },
            is_discovered=discover,
            is_rolled_up=roll_up,
            epsilon=epsilon,
        )
        return self.measurer(found).measure(request)

    def evaluate(
        self,
        model: Any,
        *,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> EvaluationResult:
        """How good a classifier is on a dataset's reports: loss, accuracy, ROC and PR curves, calibration.

        It is charged to the dataset.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted model of scikit-learn.
            bins: How many score bins; more of them bear more noise.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.

        Raises:
            MaskedLarkError: as `aggregate`.
        """
        if self._far is not None:
            over = self._far.dataset(dataset)
            encoded = as_onnx(model, self._far.task(over.task_id.hex()).bundle.task.num_features)
            named = (over.dataset_id or b"").hex()
            return evaluated(self._far, encoded, bins=bins, epsilon=epsilon, dataset=named)
        found = DatasetStore(self._engine).find(dataset)
        task = self._task(found).bundle.task
        planned = plan_evaluation(
            as_onnx(model, task.num_features),
            task=task,
            dataset=found,
            query_id=os.urandom(QUERY_ID_BYTES),
            epsilon=epsilon,
            num_bins=bins,
        )
        return self.evaluator(found).evaluate(planned)

    def again(self, query: str) -> AggregateResult:
        """The answer to a query that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        if self._far is not None:
            return aggregated_before(self._far, query)
        planned = QueryStore(self._engine).find(query, QuerySpec)
        return self.measurer(self._dataset(planned)).again(planned)

    def evaluate_again(self, query: str) -> EvaluationResult:
        """The answer to an evaluation that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        if self._far is not None:
            return evaluated_before(self._far, query)
        planned = QueryStore(self._engine).find(query, EvaluationSpec)
        return self.evaluator(self._dataset(planned)).again(planned)

    def _dataset(self, planned: PlannedQuery[Any]) -> Dataset:
        return DatasetStore(self._engine).find(planned.spec.dataset_id.hex())

    def evaluator(self, dataset: Dataset) -> Evaluator:
        """What asks evaluations over one dataset."""
        return self._asking(Evaluator, dataset)

    def measurer(self, dataset: Dataset) -> Measurer:
        """What asks queries over one dataset."""
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

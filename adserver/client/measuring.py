"""Measuring from Python: aggregates and evaluations."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, Final

from adserver.client.choices import check_numbers, choose, suggest_names
from adserver.client.connection import Connection, id_of, warn_afterwards
from adserver.client.job import Job
from adserver.measuring.aggregate_forecast import AggregateForecast, forecast_aggregate
from adserver.measuring.evaluation_forecast import EvaluationForecast, forecast_evaluation
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.request import name_groups, read_request
from adserver.measuring.result import AggregateResult
from adserver.records.dataset_state import DatasetState
from adserver.records.defaults import ASSUMED_AUC, DEFAULT_BINS
from adserver.records.exported_model import ModelWeights
from adserver.records.summaries import QuerySummary
from adserver.store.datasets import Dataset
from adserver.training.as_onnx import as_onnx
from adserver.views.asked_query import describe_earlier
from maskedlark.errors import InvalidTask, JobRefused, MaskedLarkError
from maskedlark.releases.budget import DatasetBudget
from maskedlark.releases.counting import measurement_of

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer


# Among so many a query like a new one is looked for
_LATEST: Final = 200


class Measuring(Connection):
    """What a client asks of datasets."""

    @suggest_names
    def aggregate(
        self,
        *values: str,
        histograms: str | Sequence[str] = (),
        group_by: str | Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Mapping[str, Sequence[str | int] | Mapping[str, int]] | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: Dataset | str = "",
        query_id: str = "",
    ) -> AggregateResult:
        """Sum values over groups of a dataset's reports. It is charged to the dataset's budget.

        `forecast_aggregate` says before how wide intervals will be.

        Args:
            values: Names of declared values, or "count".
            histograms: The name of a declared value with buckets, or several names.
            group_by: The name of a declared key, or several names, the coarsest first.
            where: For keys, the category or code that summed reports have.
            domains: For keys, the categories or codes that get cells of their own, or {"first": code,
                "last": code}; the default is all of a key with a size.
            discover: Find the codes of other keys by a private release first.
            roll_up: Release the coarser levels too, up to the total, so that parts add to the whole.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: As `seal` returns it, or the start of its id; not needed if there is only one.
            query_id: 32 hex digits of your own choice, of 16 random bytes: the same request under the same
                id has the same answer, and is charged once. By default a new one, which the result names.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id.
            MaskedLarkError: what is wrong with the request, or why it is refused; `HelperUnavailable` may be
                tried again.
        """
        check_numbers(epsilon=epsilon)
        if not isinstance(where or {}, Mapping) or any(
            isinstance(said, bool) or not isinstance(said, str | Integral) for said in (where or {}).values()
        ):
            raise InvalidTask(
                f"where is {where!r}: expected one value for each key, such as {{'region': 'north'}}; for "
                "several values group by the key and add up"
            )
        asked = _plain_query(
            values, histograms, group_by, where, domains, discover=discover, roll_up=roll_up, epsilon=epsilon
        )
        if noise := warn_of_noise(self.server, id_of(dataset), asked):
            warnings.warn(f"{noise}; forecast_aggregate says so before a charge", stacklevel=3)
        result = self.server.aggregate(**asked, dataset=id_of(dataset), query_id=query_id)
        if earlier := note_earlier(self.server, result):
            warn_afterwards(earlier, stacklevel=3)
        return result

    @suggest_names
    def forecast_aggregate(
        self,
        *values: str,
        histograms: str | Sequence[str] = (),
        group_by: str | Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Mapping[str, Sequence[str | int] | Mapping[str, int]] | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: Dataset | str = "",
    ) -> AggregateForecast:
        """Return what `aggregate` will cost, and how wide its intervals will be; nothing is charged.

        It knows the noise of sums, counts and buckets. How wide intervals of means and quantiles are depends
        on the data, and is not foretold.

        Args:
            values: As of `aggregate`.
            histograms: As of `aggregate`.
            group_by: As of `aggregate`.
            where: As of `aggregate`.
            domains: As of `aggregate`.
            discover: As of `aggregate`; its share of the cost is foretold, too.
            roll_up: As of `aggregate`.
            epsilon: As of `aggregate`.
            dataset: As of `aggregate`.

        Returns:
            Its `refusal` says whether the budget holds it, and which epsilon fits.

        Raises:
            InvalidTask, JobRefused: as `aggregate` would before it asks the helpers.
        """
        check_numbers(epsilon=epsilon)
        asked = _plain_query(
            values, histograms, group_by, where, domains, discover=discover, roll_up=roll_up, epsilon=epsilon
        )
        return forecast_query(self.server, id_of(dataset), asked)

    @suggest_names
    def evaluate(
        self,
        model: Any = None,
        *,
        job: Job | str = "",
        head: str = "",
        weights: str = ModelWeights.LATEST,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: Dataset | str = "",
        query_id: str = "",
    ) -> EvaluationResult:
        """Evaluate a classifier on a dataset's reports: loss, accuracy, ROC and PR curves, calibration.

        It is charged to the dataset. `forecast_evaluation` says before how wide intervals will be.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted model of scikit-learn; an export
                over raw columns too, if it holds the task's encoder.
            job: Instead of a model: a job, as `train` returns it or by the start of its id or name, whose
                weights are evaluated.
            head: Of a job with several heads, the one to evaluate; a model may then be given with the job.
            weights: Of the job: `latest`, or `best`, those that did best on its evaluation set.
            bins: How many score bins; more of them bear more noise.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: As `seal` returns it, or the start of its id; not needed if there is only one.
            query_id: As of `aggregate`.

        Raises:
            InvalidTask: not exactly one of a model and a job is given.
            MaskedLarkError: as `aggregate`.
        """
        check_numbers(epsilon=epsilon)
        if model is not None and not isinstance(model, bytes):
            model = as_onnx(model, self._task_of(id_of(dataset)).num_features)
        return self.server.evaluate(
            model,
            job=job.job_id.hex() if isinstance(job, Job) else job,
            head=head,
            weights=choose(ModelWeights, "weights", weights),
            # Also of numpy's integers, which JSON does not take
            bins=index(bins),
            epsilon=None if epsilon is None else float(epsilon),
            dataset=id_of(dataset),
            query_id=query_id,
        )

    def forecast_evaluation(
        self,
        *,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: Dataset | str = "",
        base_rate: float | None = None,
        auc: float = ASSUMED_AUC,
    ) -> EvaluationForecast:
        """Return what `evaluate` will cost, and how wide its intervals will be; nothing is charged.

        It knows the noise and the number of reports, and assumes what only the evaluation can tell.

        Args:
            bins: As of `evaluate`.
            epsilon: As of `evaluate`.
            dataset: As of `evaluate`.
            base_rate: The share of records of label 1, by default 0.1; in a task of more than two classes of
                those whose first choice is right, by default 0.5.
            auc: Of the model, which is assumed to be calibrated.

        Returns:
            Its `refusal` says whether the budget holds it, and which epsilon fits.

        Raises:
            InvalidTask, InvalidModel, JobRefused: as `evaluate` would for these.
        """
        check_numbers(epsilon=epsilon, base_rate=base_rate, auc=auc)
        found = self.server.dataset(id_of(dataset))
        return forecast_evaluation(
            self.server.task(found.task_id.hex()).stored.bundle.task,
            found,
            epsilon=None if epsilon is None else float(epsilon),
            num_bins=index(bins),
            base_rate=None if base_rate is None else float(base_rate),
            auc=float(auc),
            budget=_budget_of(self.server, found),
        )

    @suggest_names
    def repeat_aggregate(
        self, query: str, *, domains: Mapping[str, Sequence[str]] | None = None
    ) -> AggregateResult:
        """Return the answer to an earlier query again, by the start of its id; it costs nothing.

        Args:
            query: The start of its id.
            domains: For keys, words: groups that have a code for a name, such as those that a discovery
                found, are called by the word that has it.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
            InvalidTask, JobRefused: as `aggregate` for its domains.
        """
        result = self.server.repeat_aggregate(query)
        if not domains:
            return result
        declared = measurement_of(self.server.task(result.task_id).stored.bundle.task)
        return name_groups(result, declared, domains)

    def repeat_evaluate(self, query: str) -> EvaluationResult:
        """Return an earlier evaluation again, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        return self.server.repeat_evaluate(query)

    def queries(self) -> list[QuerySummary]:
        """Return all queries and evaluations, oldest first."""
        return list(self.server.queries())


def forecast_query(server: "AdServer", dataset: str, asked: Mapping[str, Any]) -> AggregateForecast:
    """Return what a query, as `AdServer.aggregate` takes it, will cost, how wide, and whether it fits.

    Raises:
        InvalidTask, JobRefused: as `forecast_aggregate`.
    """
    found = server.dataset(dataset)
    return _forecast(server, found, asked, _budget_of(server, found))


def warn_of_noise(server: "AdServer", dataset: str, asked: Mapping[str, Any]) -> str:
    """Return what a query's answer will not show, before it is charged; empty if that is not known."""
    # What is wrong with the query is said by asking it; an ad server that is away is not waited for twice
    with suppress(InvalidTask, JobRefused):
        return _forecast(server, server.dataset(dataset), asked, None).noise_warning
    return ""


def _forecast(
    server: "AdServer", dataset: Dataset, asked: Mapping[str, Any], budget: DatasetBudget | None
) -> AggregateForecast:
    task = server.task(dataset.task_id.hex()).stored
    encoder = server.encoder(task.task_id.hex())
    return forecast_aggregate(
        read_request(measurement_of(task.bundle.task), **asked, encoder=encoder),
        task=task.bundle.task,
        dataset=dataset,
        encoder=encoder,
        budget=budget,
    )


def _budget_of(server: "AdServer", dataset: Dataset) -> DatasetBudget | None:
    """Return a dataset's budget; None if it is not sealed, as a forecast then says."""
    if dataset.dataset_id is None or dataset.state is not DatasetState.COMMITTED:
        return None
    return server.budgets(dataset=dataset.dataset_id.hex())[0]


def note_earlier(server: "AdServer", result: AggregateResult) -> str:
    """Return which queries before this one were of the same; empty if there are none among the latest."""
    # The query was charged: what is only said beside it must not lose it
    with suppress(MaskedLarkError):
        return describe_earlier(server.queries(latest=_LATEST), result.query_id)
    return ""


def _plain_query(
    values: Sequence[str],
    histograms: str | Sequence[str],
    group_by: str | Sequence[str],
    where: Mapping[str, str | int] | None,
    domains: Mapping[str, Sequence[str | int] | Mapping[str, int]] | None,
    *,
    discover: bool,
    roll_up: bool,
    epsilon: float | None,
) -> dict[str, Any]:
    """Return what a query is of in JSON's types."""
    return {
        "values": list(values),
        "histograms": _names(histograms),
        "group_by": _names(group_by),
        # Codes as text, as the command line and the admin API have them: one request, one digest
        "where": {name: str(said) for name, said in (where or {}).items()},
        "domains": {name: _plain(said) for name, said in (domains or {}).items()},
        "discover": discover,
        "roll_up": roll_up,
        "epsilon": None if epsilon is None else float(epsilon),
    }


def _names(given: str | Sequence[str]) -> list[str]:
    """Return a list of names, from one name or several."""
    return [given] if isinstance(given, str) else list(given)


def _plain(domain: Sequence[str | int] | Mapping[str, int]) -> list[str | int] | dict[str, int]:
    """Convert a domain to JSON's types, also from numpy's numbers."""
    if isinstance(domain, Mapping):
        return dict(domain)
    # A float or a bool is passed on as it is: it is refused by name later, and not silently made a code
    return [one if isinstance(one, str | float | bool) else index(one) for one in domain]

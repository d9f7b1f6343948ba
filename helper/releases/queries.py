"""Queries: checked, answered, paid for and only then released; the same query again gets the same bytes."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Final, TypeAlias

from helper.datasets.datasets import Datasets
from helper.datasets.records import DatasetRecords
from helper.executors.executor import Adding, Executor, ModelFile, Scoring
from helper.gradient.scoring import scoring_bytes
from helper.ledger.ledger import Ledger
from helper.ledger.records import Reservation, StoredQuery, key_of
from helper.ledger.spending import check_fits, cost
from helper.releases.answering import Call, answer_once
from helper.releases.query_cost import evaluation_cost, query_cost
from helper.releases.work_quota import WorkQuota
from helper.trust.tasks import ServedTask, Tasks
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, interruptible
from maskedlark.model import weights
from maskedlark.model.graph import Model
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.noise import NoiseSource, noise_vector
from maskedlark.randomness import STREAM_KEY_BYTES, Randomness, Stream
from maskedlark.releases.discovery import DiscoverySpec, answer_discovery
from maskedlark.releases.evaluation import EvaluationSpec, answer_evaluation, loss_to_evaluate
from maskedlark.releases.grouping import answer_query
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.update import UpdateSpec, answer_update, form_of
from maskedlark.reports.input_shares import InputShares
from maskedlark.rpc.trust import host_of

_LOG: Final = logging.getLogger(__name__)

Beside: TypeAlias = Callable[[int], bytes]
"""Reads the attachment of a query (its codes or its model), and refuses more than so many bytes."""


@frozen
class AnsweredQuery:
    """What the ad server gets of a query.

    Attributes:
        answer: The encoded aggregate share.
        spent: Of the dataset, all its jobs and queries.
    """

    answer: bytes = field(repr=False)
    spent: Epsilons


@frozen
class Queries:
    """The queries of one helper. Safe to call from many threads; the ledger decides between them."""

    tasks: Tasks
    datasets: Datasets
    executor: Executor
    ledger: Ledger
    randomness: Randomness
    quota: WorkQuota

    def answer(self, spec: AnyQuery, beside: Beside, call: Call) -> AnsweredQuery:
        """Return the answer to a query of any kind, and what its dataset has spent with it.

        Called by the ad server; idempotent.

        Args:
            spec: The query.
            beside: Reads the query's attachment; not called for a query that was answered before.
            call: The waiting caller.

        Guarantees: see `answer_once`.

        Raises:
            InvalidModel: the model of an evaluation is not accepted, does not fit the task's labels, or has
                no exact form.
            JobRefused(UNKNOWN_TASK, TASK_REFUSED, TASK_EXPIRED, UNKNOWN_DATASET, DATASET_LOST,
            MALFORMED, TOO_LARGE, UNDECLARED, DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW,
            BUDGET_EXHAUSTED, QUERY_CHANGED): TOO_LARGE also for one that takes too long or too much memory by
                estimate; MALFORMED also for another model, or other weights, than an
                evaluation names; DATASET_LOST also for the dataset of another federated round.
            HelperUnavailable: the caller's share of the memory for such work is taken.
        """
        served = self.tasks.serve(spec.task_id, call.caller)

        def check_and_compute() -> bytes:
            self._check(served, spec)
            call.check_awaited()
            try:
                return self._compute(spec, served, beside, call).encode()
            except JobRefused as refused:
                known = self._find_stored(spec) if refused.reason is JobReason.DATASET_LOST else None
                if known is None:
                    raise
                return known  # of a round that another call answered meanwhile, which deleted its updates

        def commit(answer: bytes, check_awaited: Interrupt) -> bool:
            def check(before: Sequence[Reservation]) -> None:
                check_fits(served.task, before, Reservation(spec=spec, rounds=1))
                check_awaited()

            # Read now: the transaction that keeps the answer drops the manifest of a federated round.
            of_round = self.ledger.manifests.of(spec.dataset_id) if isinstance(spec, UpdateSpec) else ()
            is_new = self.ledger.add_query(StoredQuery(spec=spec, answer=answer), check, call.actor)
            if is_new and of_round:
                self.datasets.vault.forget(spec.dataset_id, of_round)
            if is_new:
                _LOG.info("query answered: %d bytes", len(answer))
            return is_new

        answer = answer_once(
            call,
            stored=lambda: self._find_stored(spec),
            compute=check_and_compute,
            commit=commit,
            superseded=lambda: JobRefused(
                JobReason.QUERY_CHANGED, "the id is of another query: take a new one"
            ),
        )
        return AnsweredQuery(
            answer=answer, spent=cost(served.task, self.ledger.reservations(spec.dataset_id))
        )

    def _compute(self, spec: AnyQuery, served: ServedTask, beside: Beside, call: Call) -> AggregateShare:
        """Compute an answer that is affordable, within the caller's share of the memory."""
        if isinstance(spec, EvaluationSpec):
            return self._evaluate(spec, served, beside, call)
        size = self.datasets.require(spec.dataset_id, served.task_id).size
        cost = query_cost(served.task, spec, size)
        self.tasks.check_affordable(cost, f"this {spec.kind}")
        with self.quota.taken(host_of(served.task.origin), cost.num_bytes, call.check_awaited):
            return self._answer_query(spec, served, beside, call.check_awaited)

    def _answer_query(
        self,
        spec: QuerySpec | DiscoverySpec | UpdateSpec,
        served: ServedTask,
        beside: Beside,
        interrupt: Interrupt,
    ) -> AggregateShare:
        task, pair = served.task, served.pair
        match spec:
            case QuerySpec():
                # Codes are u32, and the query says how many: nothing longer is read.
                limit = 4 * sum(axis.size for axis in spec.group_by if axis.codes_digest is not None)
                domains = spec.decode_domains(beside(limit))
                shares, noise = self._shares(spec, interrupt), self._noise(interrupt)
                return answer_query(
                    task=task,
                    spec=spec,
                    pair=pair,
                    shares=shares,
                    domains=domains,
                    noise=noise,
                    interrupt=interrupt,
                )
            case DiscoverySpec():
                shares = self._shares(spec, interrupt)
                return answer_discovery(
                    task=task, spec=spec, pair=pair, role=served.role, shares=shares, interrupt=interrupt
                )
            case UpdateSpec():
                return self._sum(spec, served, interrupt)

    def _evaluate(
        self, spec: EvaluationSpec, served: ServedTask, beside: Beside, call: Call
    ) -> AggregateShare:
        limits, host = self.tasks.model_limits, host_of(served.task.origin)
        onnx = beside(limits.max_bytes)
        with self.quota.reading(host):
            model = parse(onnx, num_features=served.task.num_features, limits=limits)
            loss = loss_to_evaluate(served.task, model, spec.head)
            num_bytes = scoring_bytes(model, loss)
        scoring = Scoring(
            model=model,
            loss=loss,
            weights=_check_weights(model, spec),
            num_bins=spec.num_bins,
            file=ModelFile(read=lambda: onnx, num_features=served.task.num_features),
        )
        records = self.datasets.records(spec.dataset_id, spec.task_id)
        cost = evaluation_cost(served.task, spec, model, records=records.count, scoring_bytes=num_bytes)
        self.tasks.check_affordable(cost, "this evaluation")
        with self.quota.taken(host, cost.num_bytes, call.check_awaited):
            return self._answer_evaluation(spec, served, scoring, records, call.check_awaited)

    def _answer_evaluation(
        self,
        spec: EvaluationSpec,
        served: ServedTask,
        scoring: Scoring,
        records: DatasetRecords,
        interrupt: Interrupt,
    ) -> AggregateShare:
        shares = self._shares(spec, interrupt)
        scores = self.executor.scan(scoring, records, interrupt)
        return answer_evaluation(
            task=served.task,
            spec=spec,
            pair=served.pair,
            shares=shares,
            bins=scores.bins,
            choices=scores.choices,
            noise=self._noise(interrupt),
            interrupt=interrupt,
        )

    def _sum(self, spec: UpdateSpec, served: ServedTask, interrupt: Interrupt) -> AggregateShare:
        """Return the sum of the updates of a federated round."""
        adding = Adding(form=form_of(served.task), role=served.role, task_id=served.task_id)
        records = self.datasets.round_records(spec.round, spec.dataset_id)
        summed = self.executor.add_up(adding, records, interrupt)
        return answer_update(
            task=served.task,
            spec=spec,
            pair=served.pair,
            records=summed.records,
            vector=summed.vector,
            noise=self._noise(interrupt),
        )

    def _shares(self, spec: AnyQuery, interrupt: Interrupt) -> InputShares:
        return self.datasets.labels(spec.dataset_id, interrupt)

    def _noise(self, interrupt: Interrupt) -> NoiseSource:
        """Return fresh noise of this helper alone, drawn interruptibly."""
        return partial(
            noise_vector, randomness=interruptible(Stream(self.randomness(STREAM_KEY_BYTES)), interrupt)
        )

    def _find_stored(self, spec: AnyQuery) -> bytes | None:
        """Return the query's stored answer, if any; refuse another query under its id."""
        stored = self.ledger.query(key_of(spec))
        if stored is None:
            return None
        if stored.spec != spec:
            raise JobRefused(
                JobReason.QUERY_CHANGED,
                "a query of this id was charged with other values, groups or levels: "
                "what was not charged together is not released together; take a new id",
            )
        return stored.answer

    def _check(self, served: ServedTask, spec: AnyQuery) -> None:
        """Run every check that a new query must pass.

        The budget once before the work, and again when it is charged.
        """
        task = served.task
        self.tasks.check_not_expired(task)
        size = self.datasets.require(spec.dataset_id, served.task_id).size
        spec.check(task, records=size)
        # another call of the same query may have been charged since this one looked for its answer: it must
        # not count twice
        others = [one for one in self.ledger.reservations(spec.dataset_id) if one.spec != spec]
        check_fits(task, others, Reservation(spec=spec, rounds=1))


def _check_weights(model: Model, spec: EvaluationSpec) -> tuple[QuantisedTensor, ...]:
    """Return a model's weights on their grid, if both are what the evaluation names."""
    tensors = tuple(
        weights.quantise(values, known.name)
        for values, known in zip(model.initial_values, model.parameters, strict=True)
    )
    # The transcript names these digests, and the helpers' blinds cancel for equal transcripts only: so the
    # model that is scored must be the one that the transcript names.
    held = (model.digest, weights.digest(weights.encode(tensors)))
    if held != (spec.model_digest, spec.weights_digest):
        raise JobRefused(
            JobReason.MALFORMED,
            "the ONNX file is not the model, or has not the weights, that the evaluation names",
        )
    return tensors

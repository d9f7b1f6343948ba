"""Queries: checked, answered, paid for and only then released; the same query again gets the same bytes."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from helper.datasets.datasets import Datasets
from helper.gradient.engine import Interrupt, never
from helper.ledger.budget import check_fits, cost
from helper.ledger.ledger import Ledger, Reservation, StoredQuery
from helper.releases.release_grid import Hold, at_once
from helper.releases.scoring import score
from helper.trust.tasks import Caller, ServedTask, Tasks
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import interruptible
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import quantise
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.noise import NoiseSource, noise_vector
from maskedlark.randomness import STREAM_KEY_BYTES, Randomness, Stream
from maskedlark.releases.evaluation import EvaluationSpec, answer_evaluation, evaluated_loss
from maskedlark.releases.grouping import answer_discovery, answer_query, decode_domains
from maskedlark.releases.query import AnyQuery, DiscoverySpec, QuerySpec, check_query
from maskedlark.releases.round import AggregateShare

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuery:
    """What the ad server gets of a query.

    Attributes:
        answer: The encoded aggregate share.
        spent: Of the dataset, all its jobs and queries.
    """

    answer: bytes = field(repr=False)
    spent: Epsilons


class Queries:
    """The queries of one helper. Safe to call from many threads; the ledger decides between them."""

    def __init__(self, *, tasks: Tasks, datasets: Datasets, ledger: Ledger, randomness: Randomness) -> None:
        self._tasks = tasks
        self._datasets = datasets
        self._ledger = ledger
        self._randomness = randomness

    def query(
        self,
        encoded: bytes,
        codes: Callable[[int], bytes],
        caller: Caller,
        interrupt: Interrupt = never,
        hold: Hold = at_once,
    ) -> AnsweredQuery:
        """Sums over groups. Called by the ad server; idempotent.

        Args:
            encoded: A `QuerySpec`.
            codes: Reads the codes of the axes that name a digest, refusing more than so many bytes.
            caller: Who asks.
            interrupt: Called before the work, often during it, and before the charge; what it raises ends the
                query, uncharged.
            hold: Called once there is an answer, before it is charged: returns when it may leave, so that no
                charge shows how long it took.

        Guarantees: when it returns, the charge and the answer are durable; when it raises, neither was made
            and nothing left.

        Raises:
            InvalidTask: the query is not canonical. JobRefused(UNKNOWN_TASK, UNAUTHORIZED, TASK_REFUSED,
                TASK_EXPIRED, UNKNOWN_DATASET, DATASET_LOST, MALFORMED, TOO_LARGE, UNDECLARED,
                DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW, BUDGET_EXHAUSTED, QUERY_CHANGED)
        """
        spec = decode(QuerySpec, encoded)
        limit = 4 * sum(axis.size for axis in spec.group_by if axis.codes_digest is not None)

        def compute(served: ServedTask) -> AggregateShare:
            domains = decode_domains(spec, codes(limit))
            shares = self._datasets.opened(spec.dataset_id).shares
            noise = self._noise(interrupt)
            return answer_query(
                task=served.task,
                spec=spec,
                pair=served.pair,
                shares=shares,
                domains=domains,
                noise=noise,
                interrupt=interrupt,
            )

        return self._answer(spec, compute, caller, interrupt, hold)

    def discovery(
        self, encoded: bytes, caller: Caller, interrupt: Interrupt = never, hold: Hold = at_once
    ) -> AnsweredQuery:
        """Which codes occur. Called by the ad server; idempotent; guarantees and errors as of `query`."""
        spec = decode(DiscoverySpec, encoded)

        def compute(served: ServedTask) -> AggregateShare:
            shares = self._datasets.opened(spec.dataset_id).shares
            return answer_discovery(
                task=served.task,
                spec=spec,
                pair=served.pair,
                role=served.role,
                shares=shares,
                interrupt=interrupt,
            )

        return self._answer(spec, compute, caller, interrupt, hold)

    def evaluation(
        self,
        encoded: bytes,
        onnx: Callable[[], bytes],
        caller: Caller,
        interrupt: Interrupt = never,
        hold: Hold = at_once,
    ) -> AnsweredQuery:
        """How good a model is. Called by the ad server; idempotent; guarantees as of `query`.

        Args:
            encoded: An `EvaluationSpec`.
            onnx: Reads the model with its weights; not called for an evaluation that was answered before.
            caller: Who asks.
            interrupt: As of `query`.
            hold: The same.

        Raises:
            InvalidTask: the evaluation is not canonical.
            InvalidModel: the model is not accepted, does not fit the task's labels, or has no exact form.
            JobRefused: as `query`; MALFORMED also for another model, or other weights, than the evaluation
                names.
        """
        spec = decode(EvaluationSpec, encoded)

        def compute(served: ServedTask) -> AggregateShare:
            task = served.task
            model = parse(onnx(), num_features=task.num_features)
            loss = evaluated_loss(task, model)
            tensors = tuple(
                quantise(values, known.name)
                for values, known in zip(model.initial_values, model.parameters, strict=True)
            )
            if (model.digest, weights.digest(weights.encode(tensors))) != (
                spec.model_digest,
                spec.weights_digest,
            ):
                raise JobRefused(
                    JobReason.MALFORMED,
                    "the ONNX file is not the model, or has not the weights, that the evaluation names",
                )
            shares = self._datasets.opened(spec.dataset_id).shares
            scores = score(model, loss, tensors, shares.features, spec.num_bins, interrupt=interrupt)
            noise = self._noise(interrupt)
            return answer_evaluation(
                task=task,
                spec=spec,
                pair=served.pair,
                shares=shares,
                bins=scores.bins,
                choices=scores.choices,
                noise=noise,
                interrupt=interrupt,
            )

        return self._answer(spec, compute, caller, interrupt, hold)

    def _noise(self, interrupt: Interrupt) -> NoiseSource:
        """Fresh noise of this helper alone, which can be interrupted while it is drawn."""
        return partial(
            noise_vector, randomness=interruptible(Stream(self._randomness(STREAM_KEY_BYTES)), interrupt)
        )

    def _answer(
        self,
        spec: AnyQuery,
        compute: Callable[[ServedTask], AggregateShare],
        caller: Caller,
        interrupt: Interrupt,
        hold: Hold,
    ) -> AnsweredQuery:
        served = self._tasks.served(spec.task_id, caller)
        stored = self._stored(spec)
        if stored is None:
            self._check(served, spec)
            interrupt()
            stored = StoredQuery(spec=spec, answer=compute(served).encode())
            hold()
            new = Reservation(spec=spec, rounds=1)

            def check(before: Sequence[Reservation]) -> None:
                check_fits(served.task, before, new)
                interrupt()  # last, for the work and the check take their time

            if self._ledger.add_query(stored, check):
                _LOG.info("query answered: %d bytes", len(stored.answer))
            # another thread or process was faster: what it stored counts, and what was computed here is
            # forgotten
            else:
                stored = self._stored(spec)
                if stored is None:
                    raise JobRefused(JobReason.QUERY_CHANGED, "the id is of another query: take a new one")
        else:
            hold()
        return AnsweredQuery(
            answer=stored.answer, spent=cost(served.task, self._ledger.reservations(spec.dataset_id))
        )

    def _stored(self, spec: AnyQuery) -> StoredQuery | None:
        """The query as it was answered before; refused if it was another one."""
        stored = self._ledger.query(spec.query_id)
        if stored is not None and stored.spec != spec:
            raise JobRefused(
                JobReason.QUERY_CHANGED,
                "a query of this id was charged with other values, groups or levels: what was not charged together is not released "
                "together; take a new id",
            )
        return stored

    def _check(self, served: ServedTask, spec: AnyQuery) -> None:
        """Every check that a new query must pass.

        The budget once before the work, and again when it is charged.
        """
        task = served.task
        self._tasks.check_not_expired(task)
        size = self._datasets.stored(spec.dataset_id, served.task_id).size
        check_query(task, spec, records=size)
        # another call of the same query may have been charged since this one looked for its answer: it must
        # not count twice
        others = [one for one in self._ledger.reservations(spec.dataset_id) if one.spec != spec]
        check_fits(task, others, Reservation(spec=spec, rounds=1))

"""Measurements from a notebook or a program: what `adserver aggregate` does, in a few lines of Python.

from adserver import Client

with Client(data="play/adserver", helpers=("127.0.0.1:7100", "127.0.0.1:7101"), insecure=True) as client:
    result = client.aggregate("count", "purchase", group_by=["month"], epsilon=0.5)
    result.estimate("purchase", "5").value
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from adserver.measuring.domains import distinct_codes
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.evaluator import DEFAULT_BINS, Evaluator, plan_evaluation
from adserver.measuring.measurer import Measurer
from adserver.measuring.request import Request
from adserver.measuring.result import AggregateResult
from adserver.peers.client import ROUND_DEADLINE_S
from adserver.peers.opening import Peers
from adserver.records.asked_query import QUERY_ID_BYTES
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.queries import QueryStore
from adserver.store.tasks import StoredTask, TaskStore
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec, key_index, measurement_of
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.database import open_database


class Client:
    """An ad server's measurements. Use it in a `with`, or close it."""

    def __init__(
        self,
        *,
        data: str | Path,
        helpers: tuple[str, str],
        insecure: bool = False,
        tls: TlsFiles | None = None,
        database: str | None = None,
        deadline_s: float = 60.0,
        round_deadline_s: float = ROUND_DEADLINE_S,
    ) -> None:
        """Reach the ad server's store and both helpers.

        Args:
            data: The ad server's data folder, as of `adserver serve --data`.
            helpers: host:port of both helpers, by role.
            insecure: Speak plaintext, to loopback addresses only; otherwise `tls` is needed.
            tls: This server's TLS files.
            database: SQLAlchemy URL of another database than SQLite in `data`.
            deadline_s: What a helper has for an answer that takes it no time.
            round_deadline_s: What it has for a query or an evaluation.

        Raises:
            ValueError: neither insecure nor TLS files, or both.
        """
        if insecure == (tls is not None):
            raise ValueError("give either insecure=True, for loopback, or tls")
        self._engine = open_database(database or default_url(Path(data)))
        create_tables(self._engine)
        self._stack = ExitStack()
        peers = Peers(addresses=helpers, tls=tls, deadline_s=deadline_s, round_deadline_s=round_deadline_s)
        self._helpers = peers.open(self._stack, self._engine)

    @classmethod
    def of(cls, peers: Peers, *, data: Path, database: str | None) -> Self:
        """The same from what a command's options say."""
        return cls(
            data=data,
            helpers=peers.addresses,
            insecure=peers.tls is None,
            tls=peers.tls,
            database=database,
            deadline_s=peers.deadline_s,
            round_deadline_s=peers.round_deadline_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the helpers and the database."""
        self._stack.close()
        self._engine.dispose()

    def tasks(self) -> list[StoredTask]:
        """All tasks, the oldest first."""
        return TaskStore(self._engine).all()

    def datasets(self) -> list[Dataset]:
        """All datasets, the oldest first."""
        return DatasetStore(self._engine).all()

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

    def again(self, query: str) -> AggregateResult:
        """The answer to a query that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        planned = QueryStore(self._engine).find(query, QuerySpec)
        return self.measurer(DatasetStore(self._engine).find(planned.spec.dataset_id.hex())).again(planned)

    def evaluate(
        self,
        model: str | Path | bytes,
        *,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> EvaluationResult:
        """How good a classifier is on a dataset's reports: loss, accuracy, ROC and PR curves, calibration.

        It is charged to the dataset.

        Args:
            model: An ONNX file with its weights, or its path.
            bins: How many score bins; more of them bear more noise.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.

        Raises:
            MaskedLarkError: as `aggregate`.
        """
        found = DatasetStore(self._engine).find(dataset)
        encoded = model if isinstance(model, bytes) else Path(model).read_bytes()
        planned = plan_evaluation(
            encoded,
            task=self._task(found).bundle.task,
            dataset=found,
            query_id=os.urandom(QUERY_ID_BYTES),
            epsilon=epsilon,
            num_bins=bins,
        )
        return self.evaluator(found).evaluate(planned)

    def evaluate_again(self, query: str) -> EvaluationResult:
        """The answer to an evaluation that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        planned = QueryStore(self._engine).find(query, EvaluationSpec)
        return self.evaluator(DatasetStore(self._engine).find(planned.spec.dataset_id.hex())).again(planned)

    def evaluator(self, dataset: Dataset) -> Evaluator:
        """What asks evaluations over one dataset."""
        return Evaluator(
            helpers=self._helpers,
            task=self._task(dataset).bundle.task,
            dataset=dataset,
            store=QueryStore(self._engine),
            clock=time.time,
        )

    def measurer(self, dataset: Dataset) -> Measurer:
        """What asks queries over one dataset."""
        return Measurer(
            helpers=self._helpers,
            task=self._task(dataset).bundle.task,
            dataset=dataset,
            store=QueryStore(self._engine),
            clock=time.time,
            randomness=os.urandom,
        )

    def _task(self, dataset: Dataset) -> StoredTask:
        return TaskStore(self._engine).find(dataset.task_id.hex())

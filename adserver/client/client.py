"""The ad server from a notebook or a program: what its commands do, in a few lines of Python.

from adserver import Client

with Client(data="play/adserver", helpers=("127.0.0.1:7100", "127.0.0.1:7101"), insecure=True) as client:
    job = client.train(module, loss="cross_entropy", learning_rate=0.3, rounds=60, epsilon=3)
    job.export("trained.onnx", takes="columns")
    result = client.aggregate("count", "purchase", group_by=["month"], epsilon=0.5)
    result.estimate("purchase", "5").value
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adserver.budgets.reservations import Budgets
from adserver.client.measuring import Measuring
from adserver.client.remote import RemoteAdServer
from adserver.client.sealing import Sealing
from adserver.client.tasks import read_encoder_of, task_fields
from adserver.client.training import Training
from adserver.collecting.task_creation import create_task
from adserver.collecting.task_settings import label_space, measurement_of_settings
from adserver.peers.retrying import with_retries
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.tasks import StoredTask, TaskStore
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import HelperUnavailable
from maskedlark.releases.budget import DatasetBudget


class Client(Sealing, Measuring, Training):
    """An ad server's tasks, datasets, jobs and measurements. Use it in a `with`, or close it."""

    def tasks(self) -> list[StoredTask]:
        """Return all tasks, oldest first."""
        return TaskStore(self._engine).all() if self._far is None else self._far.tasks()

    def datasets(self) -> list[Dataset]:
        """Return all datasets, oldest first."""
        return DatasetStore(self._engine).all() if self._far is None else self._far.datasets()

    def dataset(self, dataset: str = "") -> Dataset:
        """Return a dataset by the start of its id, which is not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """
        return DatasetStore(self._engine).find(dataset) if self._far is None else self._far.dataset(dataset)

    def budgets(self, *, task: str = "", dataset: str = "") -> tuple[DatasetBudget, ...]:
        """Return both budgets of committed datasets, oldest first, optionally of one task or dataset.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_DATASET)
        """
        if self._far is not None:
            return self._far.budgets(task=task, dataset=dataset)
        return Budgets(engine=self._engine, clock=time.time).of_all(task=task, dataset=dataset)

    def create_task(
        self,
        *,
        name: str,
        origin: str,
        min_batch_size: int,
        clip_norm: float,
        epsilon: float,
        encoder: Encoder | str | Path | None = None,
        num_features: int | None = None,
        classes: int | None = None,
        default_label: int | None = None,
        measurement: Mapping[str, Any] | None = None,
        days: float = 30.0,
        **more: Any,
    ) -> StoredTask:
        """Make a task: both helpers check it against their floors and sign it.

        Args:
            name: What the task is called.
            origin: The ad-tech origin that may use the reports.
            min_batch_size: Fewer reports give only noise.
            clip_norm: The most that one report adds to a sum.
            epsilon: Each dataset's budget against this ad server.
            encoder: How browsers make features, or its file; they are served it.
            num_features: By default as many as the encoder makes.
            classes: By default as many as the encoder has.
            default_label: What an impression reports that expires without a conversion.
            measurement: The values and keys that reports hold, as in the file of `adserver task create`.
            days: How long the task lasts.
            more: Other fields of `maskedlark.reports.task.Task` by their names.

        Raises:
            InvalidTask: a setting is wrong, or a helper refuses it.
            HelperUnavailable: a helper does not answer.
        """
        fitted = read_encoder_of(encoder)
        given = {"name": name, "origin": origin, "min_batch_size": min_batch_size, "clip_norm": clip_norm}
        labels = more.pop("labels", None) or label_space(
            classes=classes, default_label=default_label, encoder=fitted
        )
        fields = task_fields(
            {**given, "epsilon": epsilon, **more},
            labels=labels,
            encoder=fitted,
            features=num_features,
            measurement=None if measurement is None else measurement_of_settings(measurement),
            days=days,
        )
        return self.create_task_of(fields, fitted)

    def create_task_of(self, fields: Mapping[str, Any], encoder: Encoder | None) -> StoredTask:
        """Make a task of every field of `Task` but the helpers, whose encoder is the one that it names.

        The same fields are the same task, so that it may be asked for again. Raises as `create_task`.
        """
        if self._far is not None:
            return self._create_remotely(self._far, fields, encoder)
        store = TaskStore(self._engine)
        bundle = with_retries(lambda: create_task(self._helpers, dict(fields)), self._backoff)
        return store.find(store.add(bundle, created_at=time.time(), encoder=encoder).hex())

    def _create_remotely(
        self, far: RemoteAdServer, fields: Mapping[str, Any], encoder: Encoder | None
    ) -> StoredTask:
        """Create a task at a remote ad server, retrying until an answer arrives."""
        try:
            return with_retries(lambda: far.create_task(fields, encoder), self._backoff)
        except HelperUnavailable as away:
            told = (
                f"{away}; the task may have been created: check that ad server's tasks before you "
                "create another"
            )
            raise HelperUnavailable(told) from None

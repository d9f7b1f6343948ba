"""An ad server's database whose reports go to object storage, for tests: in memory, and with faults."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pytest
from sqlalchemy import Engine, func, select

from adserver.store import report_buckets
from adserver.store.database import create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_writer import PutsReports
from adserver.store.reports import ReportStore
from adserver.store.schema import report_objects
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.runtime.database import open_database
from maskedlark.runtime.objects import ObjectStore, Retrying
from tests.builders import NOW, world
from tests.patience import HANGS_S
from tests.stores import InMemory

URL: Final = "s3://reports/prefix"
OF: Final = world(max_dataset_size=100_000)
OTHER: Final = world(name="other")
TASK_ID: Final = OF.task.task_id


WIDTHS: Final = ((120, 120), (121, 120), (122, 120))


def drawn(
    count: int, *, seed: int, task_id: bytes = TASK_ID, widths: Sequence[tuple[int, int]] = WIDTHS
) -> list[Report]:
    """Reports of the right form, their ciphertexts of these widths in turn; what is in them is random."""
    drawing = np.random.default_rng(seed)
    return [
        Report(
            task_id=task_id,
            report_id=drawing.bytes(16),
            time_bucket=OF.task.time_bucket(NOW) + number % 2,
            shares=(
                SealedShare(key_id=1, ciphertext=drawing.bytes(widths[number % len(widths)][0])),
                SealedShare(key_id=2, ciphertext=drawing.bytes(widths[number % len(widths)][1])),
            ),
        )
        for number in range(count)
    ]


@dataclass
class Site:
    """A database with two tasks, and the bucket that its reports go to."""

    engine: Engine
    monkeypatch: pytest.MonkeyPatch
    memory: InMemory = field(default_factory=InMemory)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        create_tables(self.engine)
        for one in (OF, OTHER):
            if TaskStore(self.engine).get(one.task.task_id) is None:
                TaskStore(self.engine).add(one.bundle, created_at=NOW)
        self.bucket = ReportBucket.of(self.engine, URL, may_add=True)
        self.goes_to(self.memory)
        self.monkeypatch.setattr("adserver.store.report_object_writer.WORTH_BYTES", 1_000)
        self.monkeypatch.setattr("adserver.store.report_object_writer.LONGEST_S", HANGS_S)

    def goes_to(self, store: ObjectStore) -> None:
        """From now on the bucket's URL leads to this store."""

        def opened(_bucket: ReportBucket) -> Retrying:
            return Retrying(store, sleep=lambda _: None, whose="the ad server")

        self.monkeypatch.setattr(report_buckets.ReportBucket, "open", opened)

    def intake(self) -> ReportStore:
        """Takes reports in, as one of any number of intakes."""
        putting = PutsReports(self.bucket, self.bucket.open(), monotonic=lambda: self.now_s)
        return ReportStore(self.engine, putting)

    def taken(self, handle: bytes = b"h" * 16, *, limit: int = 1_000_000) -> list[Report]:
        """All waiting reports of the task as both helpers are sent them, which then wait again."""
        datasets = DatasetStore(self.engine)
        dataset = datasets.begin(TASK_ID, handle, limit=limit, created_at=NOW)
        try:
            return self.sent(handle)
        finally:
            datasets.give_back(dataset)

    def sent(self, handle: bytes) -> list[Report]:
        """The reports of a dataset, put together again of what each helper is sent."""
        of_role = [
            [one for page in ReportStore(self.engine).share_pages(OF.task, handle, role) for one in page]
            for role in (0, 1)
        ]
        return [
            Report(
                task_id=TASK_ID,
                report_id=first.report_id,
                time_bucket=first.time_bucket,
                shares=(first.share, second.share),
            )
            for first, second in zip(*of_role, strict=True)
        ]

    def num_objects(self) -> int:
        """How many objects the manifest names."""
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(report_objects)).scalar_one()

    def waiting(self) -> int:
        """How many reports are counted."""
        return ReportStore(self.engine).counts(TASK_ID).waiting


def by_id(reports: Sequence[Report]) -> list[Report]:
    """The same reports in an order of their own."""
    return sorted(reports, key=lambda one: one.report_id)


@contextmanager
def site_at(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site over an empty database."""
    engine = open_database(url)
    try:
        yield Site(engine, monkeypatch)
    finally:
        engine.dispose()

"""An ad server with something of everything in its store, for the dashboard's tests and pictures.

Its jobs were never run: their figures are drawn here, as curves of real jobs look.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import Engine, insert, update

from adserver.admin.access import LOOPBACK_NAMES, AuthMiddleware
from adserver.admin.admin_context import AdminContext
from adserver.admin.helper_watch import HelperHealth, _SeenKey
from adserver.client import Client
from adserver.client.local import LocalAdServer
from adserver.dashboard.app import dashboard
from adserver.ingest.intake import IntakeCounts
from adserver.measuring.domains import distinct_codes
from adserver.measuring.evaluator import plan_evaluation
from adserver.measuring.request import Request, plan_discovery, plan_query
from adserver.peers.replies import HelperStatus
from adserver.records.access import GrantKind, Scope
from adserver.records.asked_query import StoredAnswer
from adserver.records.dataset_state import DatasetState
from adserver.records.job_state import JobState
from adserver.records.round_figures import RoundFigures
from adserver.store.access import AccessStore
from adserver.store.audit_log import log_refusal
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import DatasetStore
from adserver.store.jobs import JobStore, figures_row
from adserver.store.queries import QueryStore
from adserver.store.reports import ReportStore
from adserver.store.schema import datasets, dropped_reports, job_rounds, jobs, report_counts
from adserver.store.tasks import TaskStore
from maskedlark.errors import ReportReason
from maskedlark.model.dense import dense_network
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import measurement_of
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.database import open_database
from maskedlark.runtime.refused_acts import RefusedActs
from tests import builders
from tests.adserver.job_world import RECORDS, Sealed, SetClock, plan_for, sealed
from tests.builders import NOW
from tests.measured import SHOP, measuring_world

NOISE: Final[dict[str, Any]] = {
    "mechanism": Mechanism.GAUSSIAN,
    "epsilon": 4.0,
    "collusion_epsilon": 16.0,
    "expires_at": 1 << 39,
}
OF: Final[Sealed] = sealed(name="newsletter clicks", min_batch_size=16, **NOISE)
SHOP_OF: Final = measuring_world(SHOP, name="shop purchases", **NOISE)
SHOP_DATASET: Final = bytes.fromhex("5e" * 32)
SHOP_REPORTS: Final = 12_400
PANEL: Final = b"\7" * 32
"""The digest of an evaluation set, which is not stored."""
STOPPED: Final = "helper 1 refused round 12: helpers_disagree"


@dataclass
class Painted:
    """The store, and what a running server adds to it.

    Attributes:
        counts: What the intake says.
        seen: What is known of the helpers.
    """

    folder: Path
    clock: SetClock = field(default_factory=SetClock)
    tls: TlsFiles | None = None
    counts: IntakeCounts = field(default_factory=IntakeCounts)
    seen: tuple[HelperHealth, ...] = ()

    def __post_init__(self) -> None:
        self.engine: Engine = open_database(default_url(self.folder))
        create_tables(self.engine)
        self.jobs = JobStore(self.engine, self.clock)
        self.access = AccessStore(self.engine, self.clock)
        helpers: Any = ()
        self.client = Client.of(LocalAdServer.over(self.engine, helpers, data=self.folder))
        self.refused = RefusedActs(partial(log_refusal, self.engine))

    @property
    def site(self) -> AdminContext:
        return AdminContext(
            engine=self.engine,
            data=self.folder,
            client=self.client,
            intake=lambda: self.counts,
            sights=lambda: self.seen,
            tls=self.tls,
            clock=self.clock,
            started_at=NOW - 86_400.0,
            refused=self.refused,
        )

    def grant(self, kind: GrantKind = GrantKind.TOKEN, scope: Scope = Scope.OPERATE) -> str:
        return self.access.make(kind, scope, name="a test", lasts_s=3_600.0)

    @contextmanager
    def door(self) -> Iterator[AuthMiddleware]:
        hosts = [*LOOPBACK_NAMES, "testserver"]
        with dashboard(self.site, hosts=hosts, is_tls=self.tls is not None) as door:
            yield door

    def close(self) -> None:
        self.engine.dispose()

    def job(self, number: int, state: JobState, *, rounds: int, done: int, **columns: Any) -> bytes:
        """A job that is somewhere in its life, with the figures of its rounds."""
        job_id = bytes([number]) * 16
        plan = plan_for(
            OF, job_id=job_id, rounds=rounds, batch_size=float(RECORDS), noise_multiplier=30.0 + number
        )
        self.clock.now_s = NOW - 3_600.0 * number
        is_named = number == 2
        name, note = "two <layers>" * is_named, "32 & 16 hidden" * is_named
        self.jobs.submit(plan, name=name, note=note, eval_set_digest=PANEL)
        values = {"state": state, "rounds_done": done, "lease_until_s": 1e12, **columns}
        with self.engine.begin() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(values))
        for at in range(done + 1):
            self.round(job_id, at)
        self.clock.now_s = float(NOW)
        return job_id

    def round(self, job_id: bytes, at: int, of: int = 60) -> None:
        """The figures after one more round, and the job says so."""
        wave = math.sin(1.7 * at) + math.sin(0.61 * at + job_id[0])
        figures = RoundFigures(
            rounds_done=at,
            finished_at_s=NOW + at,
            learning_rate=0.5 if at else None,
            gradient_norm=0.9 * math.exp(-at / (0.5 * of)) + 0.12 + 0.02 * wave if at else None,
            noise_to_signal=0.2 + 0.9 * (1 - math.exp(-at / of)) + 0.05 * wave if at else None,
            loss=0.31 + 0.38 * math.exp(-4 * at / of) + 0.008 * wave if at % 2 == 0 else None,
            calibrated_loss=0.29 + 0.38 * math.exp(-4 * at / of) + 0.008 * wave if at % 2 == 0 else None,
            accuracy=0.88 - 0.35 * math.exp(-5 * at / of) + 0.006 * wave if at % 2 == 0 else None,
            auc=0.91 - 0.4 * math.exp(-5 * at / of) + 0.006 * wave if at % 2 == 0 else None,
            auc_low=0.88 - 0.4 * math.exp(-5 * at / of) + 0.006 * wave if at % 2 == 0 else None,
            auc_high=0.94 - 0.4 * math.exp(-5 * at / of) + 0.006 * wave if at % 2 == 0 else None,
        )
        with self.engine.begin() as connection:
            connection.execute(insert(job_rounds).values(figures_row(job_id, figures)))
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(rounds_done=at))


def painted(folder: Path, *, tls: TlsFiles | None = None) -> Painted:
    """An ad server with two tasks, three datasets, six jobs, four queries and two helpers."""
    of = Painted(folder, tls=tls)
    for world in (OF.of, SHOP_OF):
        TaskStore(of.engine).add(world.bundle, created_at=NOW - 86_400.0 * 20)
    _datasets(of)
    ReportStore(of.engine).add(builders.reports(OF.of, builders.examples(OF.of.task, 9)))
    failed = {"reason": "helpers_disagree", "cause": STOPPED}
    away = {"reason": "helper_unavailable", "cause": "helper at 127.0.0.1:7101: it does not answer"}
    for number, state, rounds, done, columns in (
        (6, JobState.DONE, 40, 40, {"is_closed": True, "rounds_charged": 40}),
        (5, JobState.CANCELLED, 80, 14, {"is_closed": True, "rounds_charged": 14}),
        (4, JobState.REFUSED, 60, 11, failed),
        (3, JobState.WAITING, 50, 22, away),
        (2, JobState.RUNNING, 60, 37, {}),
        (1, JobState.QUEUED, 30, 0, {}),
    ):
        of.job(number, state, rounds=rounds, done=done, **columns)
    _queries(of)
    of.counts = IntakeCounts(
        accepted=12_409,
        duplicates=31,
        rejected=Counter({ReportReason.OUTSIDE_TASK_PERIOD: 12, ReportReason.WRONG_LENGTH: 3}),
    )
    of.seen = sights()
    return of


def sights() -> tuple[HelperHealth, ...]:
    """Both helpers, well."""
    found = []
    for role, keys in enumerate(OF.of.keys):
        status = HelperStatus(
            version="0.1.0",
            identity=keys.identity(("north", "south")[role]),
            keys=OF.of.bundle.key_lists[role],
            software_digest=bytes(32),
            tasks=2,
            datasets=2,
            open_jobs=3,
            rounds_answered=113,
        )
        key = _SeenKey(key_id=1 + role, suite="x25519-aes128gcm", first_seen_at=NOW - 86_400.0 * 12)
        found.append(
            HelperHealth(
                role=role,
                address=f"127.0.0.1:710{role}",
                is_well=True,
                answered_at=float(NOW),
                latency_ms=2.1 + role,
                status=status,
                keys=(key,),
            )
        )
    return tuple(found)


def silent(sight: HelperHealth) -> HelperHealth:
    """A helper that has stopped answering."""
    return replace(sight, is_well=False, cause="helper at 127.0.0.1:7101: it does not answer")


def _datasets(of: Painted) -> None:
    task_id, shop_id = OF.of.task.task_id, SHOP_OF.task.task_id
    rows: list[dict[str, Any]] = [
        {
            "handle": b"\1" * 16,
            "task_id": task_id,
            "state": DatasetState.COMMITTED,
            "created_at": NOW - 86_400.0 * 9,
            "received": RECORDS + 3,
            "size": RECORDS,
            "dataset_id": OF.datasets[0].dataset_id,
        },
        {
            "handle": b"\2" * 16,
            "task_id": shop_id,
            "state": DatasetState.COMMITTED,
            "created_at": NOW - 86_400.0 * 4,
            "received": SHOP_REPORTS,
            "size": SHOP_REPORTS,
            "dataset_id": SHOP_DATASET,
        },
        {
            "handle": b"\3" * 16,
            "task_id": shop_id,
            "state": DatasetState.PREPARING,
            "created_at": float(NOW),
            "received": 860,
        },
    ]
    dropped = {"handle": b"\1" * 16, "reason": ReportReason.NOT_OPENED, "reports": 3}
    counted = {"task_id": shop_id, "state": "sealed", "reports": SHOP_REPORTS + 860}
    with of.engine.begin() as connection:
        for row in rows:
            connection.execute(insert(datasets).values(row))
        connection.execute(insert(dropped_reports).values({**dropped, "role": 1}))
        connection.execute(insert(report_counts).values(counted))


def _queries(of: Painted) -> None:
    store, task = QueryStore(of.engine), SHOP_OF.task
    dataset = DatasetStore(of.engine).find(SHOP_DATASET.hex())
    draws = np.random.default_rng(5)
    by_place = Request(
        values=("count", "click", "purchase"),
        histograms=("purchase",),
        group_by=("place",),
        where={"campaign": "Lima Days"},
        epsilon=0.4,
    )
    planned = plan_query(by_place, task=task, dataset=dataset, query_id=b"\xa1" * 16)
    store.add(planned, asked_at=NOW - 7_000.0)
    scales = [
        measure.scale for measure in planned.spec.measures for _ in measure.columns(measurement_of(task))
    ]
    cells = planned.spec.num_numbers(task) // len(scales)
    total = (draws.integers(900, 3_000, (cells, len(scales))) * np.array(scales)).reshape(-1).astype(np.int64)
    cost = spent(planned.spec.charges(task), task.delta)
    store.keep_answer(planned.spec.query_id, StoredAnswer(total=total, dataset_spent=cost))
    campaigns = Request(
        values=("count",),
        group_by=("campaign",),
        domains={"campaign": distinct_codes([3, 7, 9])},
        epsilon=0.2,
    )
    unheard = plan_query(campaigns, task=task, dataset=dataset, query_id=b"\xa2" * 16)
    store.add(unheard, asked_at=NOW - 6_000.0)
    asked = Request(values=("count",), group_by=("campaign",), is_discovered=True)
    store.add(
        plan_discovery(asked, task=task, dataset=dataset, query_id=b"\xa3" * 16, keys=("campaign",)),
        asked_at=NOW - 6_500.0,
    )
    model = dense_network([task.num_features, 1], "relu", seed=1)
    evaluation = plan_evaluation(
        model, task=task, dataset=dataset, query_id=b"\xa4" * 16, epsilon=0.5, num_bins=10
    )
    store.add(evaluation, asked_at=NOW - 3_000.0)
    bins = np.arange(10)
    histogram = np.stack([400 + 60 * (9 - bins), 60 + 55 * bins])
    scale = 1 << 16
    answer = StoredAnswer(
        total=(histogram.reshape(-1) * scale).astype(np.int64),
        dataset_spent=spent(evaluation.spec.charges(task), task.delta),
    )
    store.keep_answer(evaluation.spec.query_id, answer)

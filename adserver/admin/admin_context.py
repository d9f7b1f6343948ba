"""What the admin API and the dashboard stand on: the running ad server's own store, helpers and counts."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine

from adserver.admin.helper_watch import HelperHealth
from adserver.budgets.reservations import Budgets
from adserver.client import Client
from adserver.client.ad_server import AdServer
from adserver.ingest.intake import IntakeCounts
from adserver.store.database import Clock
from adserver.store.datasets import DatasetStore
from adserver.store.jobs import JobStore
from adserver.store.queries import QueryStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.frozen import frozen
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.refused_acts import RefusedActs


@frozen
class AdminContext:
    """A running ad server.

    Attributes:
        engine: Its database.
        data: Its folder.
        client: Over the same database and helpers: what it does, the API does.
        intake: What became of the reports that came in since the server started.
        sights: What is known of both helpers.
        tls: Its TLS files; None where it speaks plaintext on loopback.
        clock: Unix seconds.
        started_at: Unix seconds.
        refused: Logs refused acts.
    """

    engine: Engine
    data: Path
    client: Client
    intake: Callable[[], IntakeCounts]
    sights: Callable[[], tuple[HelperHealth, ...]]
    tls: TlsFiles | None
    clock: Clock
    started_at: float
    refused: RefusedActs

    @property
    def server(self) -> AdServer:
        """Every operation of the ad server."""
        return self.client.server

    @property
    def tasks(self) -> TaskStore:
        """The tasks."""
        return TaskStore(self.engine)

    @property
    def reports(self) -> ReportStore:
        """The reports."""
        return ReportStore(self.engine)

    @property
    def datasets(self) -> DatasetStore:
        """The datasets."""
        return DatasetStore(self.engine)

    @property
    def jobs(self) -> JobStore:
        """The jobs."""
        return JobStore(self.engine, self.clock)

    @property
    def queries(self) -> QueryStore:
        """The queries and evaluations."""
        return QueryStore(self.engine)

    @property
    def budgets(self) -> Budgets:
        """The budgets' reservations."""
        return Budgets(engine=self.engine, clock=self.clock)

"""Jobs without helpers in a database, for tests."""

from dataclasses import dataclass, field

from sqlalchemy import Engine, func, select

from adserver.ingest.local_app import LocalIntake
from adserver.records.job_record import JobRecord
from adserver.records.local_plan import LocalPlan
from adserver.store.database import create_tables
from adserver.store.jobs import JobStore
from adserver.store.local.instances import InstanceStore
from adserver.store.local.models import LocalModels
from adserver.store.local.noised_rounds import NoisedRounds
from adserver.store.schema import local_updates
from maskedlark.federated.local_description import LocalJob
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.runtime.database import open_database


@dataclass
class LocalJobs:
    """The jobs and their models; `randomness` spreads the first instances."""

    engine: Engine
    randomness: Randomness = system_randomness
    store: JobStore = field(init=False)
    models: LocalModels = field(init=False)

    def __post_init__(self) -> None:
        self.store = JobStore(self.engine, lambda: 1.0)
        self.models = LocalModels(self.engine, self.randomness)

    @property
    def instances(self) -> InstanceStore:
        return self.models.instances

    @property
    def rounds(self) -> NoisedRounds:
        return self.models.rounds

    def submit(self, job: LocalJob, *, seed: int = 0, is_tested: bool = False) -> LocalPlan:
        plan = LocalPlan(local=job, seed=seed, is_tested=is_tested)
        self.store.submit(plan, add_files=self.models.prepare(plan))
        return plan

    def get(self, job_id: bytes) -> JobRecord:
        return self.store.get(job_id)

    def intake(self, randomness: Randomness = system_randomness) -> LocalIntake:
        return LocalIntake(self.store, self.models, randomness)

    def accepted(self, job_id: bytes) -> int:
        """How many updates a job has; as many digests of updates are stored, or something was lost."""
        counted = self.get(job_id).updates
        with self.engine.connect() as connection:
            asked = select(func.count()).where(local_updates.c.job_id == job_id)
            assert connection.execute(asked).scalar_one() == counted
        assert counted is not None
        return counted


def opened(url: str) -> Engine:
    """A database with the ad server's tables."""
    engine = open_database(url)
    create_tables(engine)
    return engine

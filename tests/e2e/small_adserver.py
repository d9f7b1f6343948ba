"""The ad server's half of a job, with its real store, worker and optimizer, on two helpers behind gRPC."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from adserver.peers.client import HelperClient
from adserver.peers.retrying import Backoff
from adserver.records.training_plan import TrainingPlan
from adserver.store.database import create_tables, default_url
from adserver.store.job_files import submit
from adserver.store.jobs import JobStore
from adserver.training.worker import JobWorker
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.started_job import StartedJob
from maskedlark.runtime.database import open_database
from tests.audit.site import Site
from tests.builders import NOW
from tests.patience import HANGS_S


@dataclass
class Diverted:
    """A helper behind somebody who changes what it is told."""

    client: HelperClient
    job: dict[str, Any] = field(default_factory=dict)
    model: bytes | None = None
    weights_at: int | None = None
    answers: list[AggregateShare] = field(default_factory=list)

    def start_job(self, job: JobSpec, model: bytes) -> StartedJob:
        return self.client.start_job(replace(job, **self.job), self.model or model)

    def run_round(
        self,
        job: JobSpec,
        round_index: int,
        weights: bytes,
        num_parameters: int,
        *,
        cancelled: Event | None = None,
    ) -> AggregateShare:
        if self.weights_at == round_index:
            weights = weights[:1] + bytes([weights[1] ^ 1]) + weights[2:]
        share = self.client.run_round(job, round_index, weights, num_parameters, cancelled=cancelled)
        self.answers.append(share)
        return share

    def close_job(self, job: JobSpec) -> int:
        return self.client.close_job(job)


class AdServer:
    """A store and a worker that asks the two helpers of a site, the second by way of somebody."""

    def __init__(self, data: Path, site: Site, diverted: Diverted) -> None:
        self.data = data
        self.model = site.onnx
        self.engine = open_database(default_url(data))
        create_tables(self.engine)
        self.store = JobStore(self.engine, lambda: NOW)
        self.helpers = (Diverted(client=site.clients[0]), diverted)

    def run(self, plan: TrainingPlan) -> None:
        submit(self.engine, self.data, plan, model=self.model, eval_set=None, clock=lambda: NOW)
        self.go_on()

    def go_on(self) -> None:
        JobWorker(
            self.engine, self.helpers, self.data, lambda: NOW, backoff=Backoff(give_up_after_s=HANGS_S)
        ).run_one()

"""A federated ad server with two helpers and six devices, for tests: in memory, or over gRPC and HTTP."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from adserver.ingest.intake import Intake
from adserver.peers.client import HelperClient
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import Backoff
from adserver.records.job_record import JobRecord
from adserver.records.server_settings import IntakeSettings
from adserver.records.submissions import FederatedSubmission
from adserver.serving.intake_servers import running_ingest
from adserver.simulating.simulator import Simulated, simulate
from adserver.store.database import create_tables, default_url
from adserver.store.job_files import JobFiles, submit
from adserver.store.jobs import JobStore
from adserver.store.reports import ReportStore
from adserver.store.rounds import DeviceRound, RoundStore
from adserver.store.tasks import TaskStore
from adserver.training.federated.model import read_submitted_model
from adserver.training.federated.submission import plan_federated
from adserver.training.worker import JobWorker
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device import Device, DeviceRequest
from browser_sim.kinds import TrainerKind
from helper.core import HelperCore
from helper.releases.answering import Call
from helper.releases.release_grid import ReleaseGrid
from helper.serving.service import HelperService
from maskedlark.canonical import encode
from maskedlark.errors import ReportRejected
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples, LocalModel, Parameters
from maskedlark.federated.populations import Population
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategy import device_stream
from maskedlark.randomness import seeded
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.dataset import AdmittedSet, ShareForHelper
from maskedlark.reports.updates import UpdateForm
from maskedlark.rpc.wire import decode_report
from maskedlark.runtime.database import open_database
from tests.builders import NOW, joined_sets
from tests.helper.served import served as at_a_port
from tests.helper.update_parties import UpdateScene
from tests.patience import HANGS_S

WIDTHS = (4, 2)
MODEL = DenseModel(widths=WIDTHS)
FORM = UpdateForm(num_parameters=MODEL.size)
DEVICES = 6
SEED = 11
ROUNDS = 3
SETTINGS: dict[str, Any] = {"devices": DEVICES, "sampling_rate": 0.5, "rounds": ROUNDS}
PATIENT = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=HANGS_S)


class Killed(BaseException):
    """The process dies: nothing may catch this."""


@dataclass
class CoreHelper:
    """A helper's core under the methods of `HelperClient`; dies before or after a step if it is told to."""

    scene: UpdateScene
    role: int
    steps: list[str] = field(default_factory=list)
    dies_at: int | None = None

    def step(self, name: str) -> None:
        self.steps.append(name)
        if self.dies_at is not None and len(self.steps) > self.dies_at:
            self.dies_at = None
            raise Killed(name)

    def prepare_dataset(
        self,
        task_id: bytes,
        handle: bytes,
        share_chunks: Iterable[Sequence[ShareForHelper]],
        *,
        update_round: bytes,
        **_: object,
    ) -> AdmittedSet:
        self.step("prepare")
        core = self.scene.cores[self.role]
        with core.datasets.prepare_round(task_id, handle, update_round, None) as preparation:
            parts = [preparation.add(chunk) for chunk in share_chunks]
            totals = preparation.finish()
        return joined_sets(parts, totals.dropped)

    def commit_dataset(
        self, task_id: bytes, handle: bytes, chosen: NDArray[np.bool_], dataset_id: bytes
    ) -> None:
        self.step("commit")
        bits = np.packbits(chosen, bitorder="little").tobytes()
        self.scene.cores[self.role].datasets.commit(task_id, handle, bits, dataset_id, None)
        self.step("committed")

    def run_query(
        self, spec: UpdateSpec, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        del beside, cancelled
        self.step("ask")
        answered = self.scene.cores[self.role].queries.answer(spec, lambda _: b"", Call(caller=None))
        self.step("answered")
        return QueryAnswer(share=AggregateShare.decode(answered.answer, length), dataset_spent=answered.spent)


@dataclass
class Site:
    """An ad server, two helpers and devices, on one folder."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)
    now_s: float = float(NOW)
    job_id: bytes = b"f" * 16
    database: str | None = None
    trainer: TrainerKind = TrainerKind.NUMPY

    def __post_init__(self) -> None:
        settings = {
            "updates": FORM,
            "num_features": 4,
            "epsilon": 12.0,
            "collusion_epsilon": 60.0,
            **self.changes,
        }
        self.scene = UpdateScene(self.folder / "helpers", **settings)
        self.engine = open_database(self.database or default_url(self.folder / "adserver"))
        create_tables(self.engine)
        TaskStore(self.engine).add(self.scene.bundle, created_at=NOW)
        self.store = JobStore(self.engine, lambda: self.now_s)
        self.rounds = RoundStore(self.engine)
        self.intake = Intake(TaskStore(self.engine), ReportStore(self.engine), lambda: 0.0, self.rounds)
        self.helpers: list[Any] = [CoreHelper(self.scene, role) for role in (0, 1)]
        self.answers = self.folder / "answers"
        features = np.frombuffer(seeded(3, "features")(4 * 5 * DEVICES), np.uint8).reshape(-1, 4)
        self.examples = Examples(features=features, labels=(np.arange(len(features)) % 2))
        self.population = Population(members=tuple(np.arange(5 * one, 5 * one + 5) for one in range(DEVICES)))

    def submit(self, **changes: Any) -> None:
        submission = replace(
            FederatedSubmission(
                kind="dp-fedavg",
                settings=SETTINGS,
                widths=WIDTHS,
                epsilon=None,
                window_s=5.0,
                least_devices=None,
            ),
            **changes,
        )
        plan = plan_federated(submission, task=self.scene.task, job_id=self.job_id, now_s=self.now_s)
        asked = read_submitted_model(submission.model, submission.widths, self.scene.task, seed=0)
        submit(
            self.engine,
            self.folder / "adserver",
            plan,
            model=asked.file,
            eval_set=submission.eval_set,
            clock=lambda: self.now_s,
        )

    def devices_answer(self, stored: DeviceRound, *, dies_after: int | None = None) -> list[bytes]:
        """All devices answer a round, once; the bytes that they sent."""
        encoded = encode(stored.round)
        body = len(encoded).to_bytes(4, "little") + encoded + stored.content
        asked = DeviceRequest.read(body, self.scene.task, self.trainer)
        sent = []
        with AnswerStore(self.answers) as answers:
            for number in range(DEVICES)[:dies_after]:
                device = Device(
                    number=number,
                    examples=Examples(
                        features=self.examples.features[self.population.members[number]],
                        labels=self.examples.labels[self.population.members[number]],
                    ),
                    sealer=self.scene.updates,
                    answers=answers,
                    cap=None,
                    training=lambda index, device: device_stream(SEED, index, device),
                    sealing=lambda index, device: seeded(1_000 * index + device, "sealing"),
                )
                answer = device.answer(asked, unix_s=NOW)
                assert answer.report is not None
                sent.append(answer.report)
                self.take(answer.report)
        return sent

    def take(self, report: bytes) -> None:
        """Upload; a round that ended meanwhile takes no more."""
        with suppress(ReportRejected):
            self.intake.take(decode_report(report))

    def run(self, devices: Callable[[DeviceRound], object] | None = None) -> JobRecord:
        """A fresh worker runs the job, while devices answer: called with each round that is found open.

        It may be called again with the same one, and a round may end while it is answered. What the devices
        raise ends the run, and is raised here.
        """
        is_over = Event()
        worker = JobWorker(
            self.engine,
            (self.helpers[0], self.helpers[1]),
            self.folder / "adserver",
            lambda: self.now_s,
            backoff=PATIENT,
            poll_s=0.01,
        )

        def answer() -> None:
            try:
                while not is_over.wait(0.01):
                    stored = self.rounds.newest_open(self.scene.task_id)
                    if stored is not None:
                        (devices or self.devices_answer)(stored)
            except BaseException:
                worker.stop()
                raise

        with ThreadPoolExecutor(1, thread_name_prefix="devices") as threads:
            answering = threads.submit(answer)
            try:
                worker.run_one()
            finally:
                is_over.set()
                answering.result()
        return self.store.get(self.job_id)

    def state(self) -> bytes | None:
        return self.files.checkpoint()

    @property
    def files(self) -> JobFiles:
        return JobFiles(self.engine, self.folder / "adserver", self.job_id)

    def simulated(self, model: LocalModel = MODEL, first: Parameters | None = None) -> bytes:
        """The state that a simulation of the same seeds ends in."""
        bound = UpdateBound(clip_norm=1.0, frac_bits=24)
        strategy = DpFedAvg(**SETTINGS, noise_multiplier=0.0, bound=bound)
        what = Simulated(
            strategy=strategy,
            model=model,
            population=self.population,
            features=self.examples.features,
            labels=self.examples.labels,
        )
        first = MODEL.initial(seeded(0, "first weights")) if first is None else first
        *_, last = simulate(what, first, seed=SEED, evaluate=lambda _: {})
        return last.state.encode()


@contextmanager
def served(core: HelperCore) -> Iterator[HelperClient]:
    """A helper's core on a free port, and the ad server's client of it."""
    service = HelperService(core, ReleaseGrid(step_s=0.0005))
    with at_a_port(service) as address, HelperClient(address, None, HANGS_S) as client:
        yield client


class NetworkSite(Site):
    """The same with real front doors: helpers over gRPC, devices over HTTP. Use it in a `with`."""

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self.helpers = [self._open.enter_context(served(core)) for core in self.scene.cores]
        doors = running_ingest(self.engine, IntakeSettings(), tls=None)
        self.http = f"http://{self._open.enter_context(doors).http}"
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self.engine.dispose()

    def post(self, report: bytes) -> httpx.Response:
        """What the ad server answers to an upload."""
        return httpx.post(f"{self.http}/v1/reports", content=report, timeout=HANGS_S)

    def take(self, report: bytes) -> None:
        self.post(report)

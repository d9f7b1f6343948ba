"""Federated jobs at the ad server.

Real helpers in memory, real devices, and processes that die between any two steps.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver.ingest.intake import Intake
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import Backoff
from adserver.records.job_state import JobState
from adserver.simulating.simulator import Simulated, simulate
from adserver.store.database import create_tables, default_url
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobRecord, JobStore
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from adserver.training.federated_submission import FederatedSubmission, plan_federated
from adserver.training.worker import JobWorker
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device import Device, read_round
from helper.releases.answering import Call
from maskedlark.canonical import encode
from maskedlark.errors import InvalidTask, JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples
from maskedlark.federated.populations import Population
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategy import device_stream
from maskedlark.model.dense import dense_network
from maskedlark.randomness import seeded
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.dataset import AdmittedSet, ShareForHelper
from maskedlark.reports.updates import UpdateForm
from maskedlark.rpc.wire import decode_report
from maskedlark.runtime.database import open_database
from tests.builders import NOW
from tests.helper.update_parties import UpdateScene

WIDTHS = (4, 2)
MODEL = DenseModel(widths=WIDTHS)
FORM = UpdateForm(num_parameters=MODEL.size)
DEVICES = 6
SEED = 11
ROUNDS = 3
SETTINGS: dict[str, Any] = {"devices": DEVICES, "sampling_rate": 0.5, "rounds": ROUNDS}
IMPATIENT = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=1.0)


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
        with core.updates.prepare(task_id, handle, update_round, None) as preparation:
            parts = [preparation.add(chunk) for chunk in share_chunks]
            totals = preparation.finish()
        return AdmittedSet(
            is_admitted=np.concatenate([part.is_admitted for part in parts]),
            view_tags=np.concatenate([part.view_tags for part in parts]),
            dropped=totals.dropped,
        )

    def commit_dataset(
        self, task_id: bytes, handle: bytes, chosen: NDArray[np.bool_], dataset_id: bytes
    ) -> None:
        self.step("commit")
        bits = np.packbits(chosen, bitorder="little").tobytes()
        self.scene.cores[self.role].updates.commit(task_id, handle, bits, dataset_id, None)
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

    def __post_init__(self) -> None:
        settings = {
            "updates": FORM,
            "num_features": 4,
            "epsilon": 12.0,
            "collusion_epsilon": 60.0,
            **self.changes,
        }
        self.scene = UpdateScene(self.folder / "helpers", **settings)
        self.engine = open_database(default_url(self.folder / "adserver"))
        create_tables(self.engine)
        TaskStore(self.engine).add(self.scene.bundle, created_at=NOW)
        self.store = JobStore(self.engine, lambda: self.now_s)
        self.rounds = RoundStore(self.engine)
        self.intake = Intake(TaskStore(self.engine), ReportStore(self.engine), lambda: 0.0, self.rounds)
        self.helpers = [CoreHelper(self.scene, role) for role in (0, 1)]
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
        folder = JobFolder(self.folder / "adserver", self.job_id)
        folder.write_submission(dense_network(WIDTHS, "relu", seed=0), None)
        self.store.submit(plan)

    def devices_answer(self, dies_after: int | None = None) -> list[bytes]:
        """All devices answer the round that is open, once; the bytes that they sent."""
        stored = self.rounds.newest_open(self.scene.task_id)
        if stored is None:
            return []
        encoded = encode(stored.round)
        asked = read_round(len(encoded).to_bytes(4, "little") + encoded + stored.content, self.scene.task)
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
                assert answer is not None
                assert answer.report is not None
                sent.append(answer.report)
                with suppress(ReportRejected):  # the round ended meanwhile
                    self.intake.take(decode_report(answer.report))
        return sent

    def run(self, devices: Callable[[], object] | None = None) -> JobRecord:
        """A fresh worker runs the job, while devices answer whatever is open."""
        is_over = Event()

        def answer() -> None:
            while not is_over.wait(0.01):
                (devices or self.devices_answer)()

        thread = Thread(target=answer, daemon=True)
        thread.start()
        try:
            worker = JobWorker(
                self.engine,
                (self.helpers[0], self.helpers[1]),  # type: ignore[arg-type]
                self.folder / "adserver",
                lambda: self.now_s,
                backoff=IMPATIENT,
                poll_s=0.01,
            )
            worker.run_one()
        finally:
            is_over.set()
            thread.join()
        return self.store.get(self.job_id)

    def state(self) -> bytes | None:
        return JobFolder(self.folder / "adserver", self.job_id).checkpoint()

    def simulated(self) -> bytes:
        bound = UpdateBound(clip_norm=1.0, frac_bits=24)
        strategy = DpFedAvg(**SETTINGS, noise_multiplier=0.0, bound=bound)
        what = Simulated(
            strategy=strategy,
            model=MODEL,
            population=self.population,
            features=self.examples.features,
            labels=self.examples.labels,
        )
        first = MODEL.initial(seeded(0, "first weights"))
        *_, last = simulate(what, first, seed=SEED, evaluate=lambda _: {})
        return last.state.encode()


def test_a_noise_off_job_trains_the_very_model_of_the_simulation(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit()
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert site.state() == site.simulated()


@pytest.mark.parametrize("dies_at", range(0, 15, 2))
def test_a_job_whose_process_dies_anywhere_ends_in_the_same_bits(tmp_path: Path, dies_at: int) -> None:
    site = Site(tmp_path)
    site.submit()
    site.helpers[dies_at // 2 % 2].dies_at = dies_at
    with pytest.raises(Killed):
        site.run()
    site.now_s += 60.0  # its lease is over
    site.scene.restart()
    assert site.run().state in (JobState.QUEUED, JobState.DONE)
    assert site.run().state is JobState.DONE
    assert site.state() == site.simulated()
    answered = site.scene.cores[0].counts().datasets
    assert answered == ROUNDS


def test_a_late_a_foreign_and_a_double_update_each_get_their_answer(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit()
    sent: list[bytes] = []
    site.run(lambda: sent.extend(site.devices_answer()))
    with pytest.raises(ReportRejected) as late:
        site.intake.take(decode_report(sent[0]))
    assert late.value.reason is ReportReason.ROUND_OVER
    with pytest.raises(ReportRejected) as foreign:
        site.intake.take(replace(decode_report(sent[0]), round_id=bytes(32)))
    assert foreign.value.reason is ReportReason.UNKNOWN_ROUND
    assert site.intake.counts.accepted == ROUNDS * DEVICES
    counts = site.intake.counts
    came_late = counts.rejected[ReportReason.ROUND_OVER] - 1
    assert counts.duplicates + came_late == len(sent) - ROUNDS * DEVICES
    assert site.state() == site.simulated()


def test_a_round_stays_open_until_enough_devices_have_answered(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(least_devices=5, window_s=0.0)
    polls: list[int] = []
    too_few: list[bool] = []

    def few_at_first() -> None:
        polls.append(1)
        if site.store.get(site.job_id).rounds_done == 0 and len(polls) < 5:
            site.devices_answer(dies_after=2)
            stored = site.rounds.newest_open(site.scene.task_id)
            too_few.append(stored is None or site.rounds.count(stored.round.round_id) <= 2)
        else:
            site.devices_answer()

    assert site.run(few_at_first).state is JobState.DONE
    assert len(polls) >= 5
    assert all(too_few)


def test_a_job_stops_with_the_budget_of_its_task(tmp_path: Path) -> None:
    site = Site(tmp_path, {"mechanism": "gaussian", "epsilon": 3.0})
    with pytest.raises(JobRefused) as error:
        site.submit(settings={**SETTINGS, "rounds": 400, "noise_multiplier": 1.0})
    assert error.value.reason is JobReason.BUDGET_EXHAUSTED
    site.submit(settings={**SETTINGS}, epsilon=2.5)
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert site.scene.cores[0].budgets_left.current()[0].epsilon >= 0.4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"widths": (4, 3, 2)}, "parameters"),
        ({"widths": (5, 1)}, "parameters|features"),
        ({"kind": "dp-fedavg2"}, "strategy"),
        ({"settings": {**SETTINGS, "sampling_rate": 1.5}}, "sampling_rate"),
        ({"settings": {**SETTINGS, "bound": {"frac_bits": 20}}}, "frac_bits"),
        ({"settings": {**SETTINGS, "cover_rate": 0.5}}, "cover_rate"),
        ({"settings": {**SETTINGS, "devices": 1}}, "least_devices"),
        ({"settings": {**SETTINGS, "nonsense": 1}}, "nonsense"),
        ({"window_s": -1.0}, "window_s"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_is_stored(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    site = Site(tmp_path)
    with pytest.raises(InvalidTask, match=told):
        site.submit(**changes)
    assert site.store.all() == ()

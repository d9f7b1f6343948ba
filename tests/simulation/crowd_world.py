"""One simulated run of federated rounds on the same network, processes and faults as reports are: `make
simulate` runs every fourth seed so.

    verdict = run_crowd_seed(7)
    assert not verdict.violations

Three jobs: one without noise whose rounds wait for all devices, so that its model must have the bits of the
run without faults; one without noise whose rounds end after a few, so that some devices come late; and one
with noise, which may be cancelled.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, Final

import numpy as np

from adserver.records.job_record import JobRecord
from adserver.records.job_state import FINAL, JobState
from adserver.records.plans import plan_columns
from adserver.records.submissions import FederatedSubmission
from adserver.simulating.simulator import Simulated, simulate
from adserver.store.job_files import submit
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobStore
from adserver.training.federated.submission import plan_federated
from maskedlark.federated.local_training import Examples
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.populations import Population
from maskedlark.federated.strategy import ServerState, device_stream
from maskedlark.model.dense import dense_network
from maskedlark.randomness import seeded
from maskedlark.releases.instructions import read_instructions
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.task import Task
from tests.simulation.crowd import DEVICES, Crowd
from tests.simulation.failpoints import aimed_at, of_updates
from tests.simulation.faults import Rates
from tests.simulation.fleet import Running
from tests.simulation.parties import CROWD_MODEL, HELPERS, WORKERS, crowd_bundles
from tests.simulation.running import Verdict, run_world
from tests.simulation.steps import Scale, Step
from tests.simulation.world import World

ROUNDS: Final = 3
_SPREAD_S: Final = 90.0
_EVERYONE: Final = (*HELPERS, *WORKERS, "ingest", "desk")
_SETTINGS: Final[dict[str, Any]] = {"devices": DEVICES, "sampling_rate": 0.5, "rounds": ROUNDS}
_JOBS: Final = ("all devices", "few devices", "noisy")
_CANCELLED_EVERY: Final = 3


class CrowdWorld(World):
    """A fleet, its devices, and what is done to them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given, scale=Scale(spread_s=_SPREAD_S), make_bundles=crowd_bundles)
        self.crowd = Crowd(self.fleet, self.journal, never_forged=self._job_id("all devices"))
        self.observer.forged = self.crowd.forged
        self.cancelled: set[bytes] = set()

    def violations(self) -> list[str]:
        """What must never happen, but did, seen from the devices and at the end of the jobs."""
        return [*self.crowd.violations, *(found for job in self.jobs() for found in self._of_job(job))]

    def figures(self) -> dict[str, Any]:
        return {
            "rounds_summed": len(self.observer.queries[HELPERS[0]]),
            "updates_refused": dict(self.crowd.refused),
            "updates_forged": len(self.crowd.forged),
        }

    def steps(self) -> Iterator[Step]:
        stream = Random(f"{self.seed} steps of a crowd")
        for kind in _JOBS:
            act = partial(self.desk.type, partial(self._submit, kind))
            yield Step(name=f"submit {kind}", at_s=stream.uniform(0, 20), act=act)
        for task in (bundle.task for bundle in self.fleet.bundles.all):
            for number in range(DEVICES):
                act = partial(self.crowd.look, number, task)
                yield Step(name=f"device {number} of {task.name}", at_s=stream.uniform(0, 5), act=act)
        for number in range(8):
            act = partial(self.operators.kill, stream.choice(_EVERYONE))
            yield Step(name=f"kill {number}", at_s=stream.uniform(0, _SPREAD_S), act=act)
        for number in range(2):
            act = partial(self.operators.pause, stream.choice(WORKERS), stream.uniform(5, 30))
            yield Step(name=f"pause {number}", at_s=stream.uniform(0, _SPREAD_S), act=act)
            act = partial(self.operators.rotate, stream.choice(HELPERS), active_in_s=5, overlap_s=600)
            yield Step(name=f"rotate {number}", at_s=stream.uniform(0, _SPREAD_S), act=act)
        if self.seed % _CANCELLED_EVERY == 0:
            act = partial(self.desk.type, self._cancel)
            yield Step(name="cancel", at_s=stream.uniform(10, _SPREAD_S), act=act)

    def _job_id(self, kind: str) -> bytes:
        return seeded(self.seed, f"job of {kind}")(16)

    def _task(self, kind: str) -> Task:
        bundles = self.fleet.bundles
        return (bundles.noisy if kind == "noisy" else bundles.exact).task

    def _submit(self, kind: str, running: Running) -> str:
        """Submit a job, unless a command that died has."""
        store = JobStore(running.engine, running.process.clock)
        if any(job.job_id == self._job_id(kind) for job in store.all()):
            return "submitted already"
        noise = {"noise_multiplier": 2.0} if kind == "noisy" else {}
        plan = plan_federated(
            FederatedSubmission(
                kind="dp-fedavg",
                settings={**_SETTINGS, **noise},
                widths=CROWD_MODEL.widths,
                epsilon=None,
                window_s=3.0,
                least_devices=DEVICES if kind == "all devices" else 3,
            ),
            task=self._task(kind),
            job_id=self._job_id(kind),
            now_s=self.kernel.now_s,
        )
        model = dense_network(CROWD_MODEL.widths, "relu", seed=0)
        submit(
            running.engine, self.fleet.data_dir, plan, model=model, eval_set=None, clock=running.process.clock
        )
        return f"submitted {kind}"

    def _cancel(self, running: Running) -> str:
        store = JobStore(running.engine, running.process.clock)
        job_id = self._job_id("noisy")
        if all(job.job_id != job_id or job.state in FINAL for job in store.all()):
            return "nothing to cancel"
        self.cancelled.add(job_id)  # before it is stored: this process may die at it
        store.cancel(job_id)
        return "cancelled"

    def settle(self) -> None:
        """With no more faults and everything up, commands that died are typed again, and jobs end."""
        for kind in _JOBS:
            if f"submit {kind}" in self.taken:
                self.desk.type(partial(self._submit, kind))
        self.until_settled()

    def _of_job(self, job: JobRecord) -> Iterator[str]:
        """One charge and one answer a round at each helper; nothing acknowledged is lost; the right bits."""
        name = f"job {job.job_id.hex()[:6]}"
        charged = {helper: self._charged(helper, job.job_id) for helper in HELPERS}
        for helper, specs in charged.items():
            indices = [spec.round.round_index for spec in specs]
            if sorted(indices) != list(range(len(indices))):
                yield f"{helper} has charged the rounds {indices} of {name}"
        if job.state is JobState.CANCELLED and job.job_id in self.cancelled:
            if abs(len(charged[HELPERS[0]]) - len(charged[HELPERS[1]])) > 1:
                yield f"the helpers have charged {name} for different rounds"
            return
        if job.state is not JobState.DONE:
            yield f"{name} is {job.state}: {job.stop}"
            return
        first, second = charged.values()
        if len(first) != ROUNDS or {one.query_id for one in first} != {one.query_id for one in second}:
            yield f"the helpers have charged {len(first)} and {len(second)} rounds of {name}"
            return
        task_id = plan_columns(job.plan)["task_id"] or b""
        used = {helper: self.fleet.ledgers[helper].used_reports(task_id) for helper in HELPERS}
        of_job = {one for one, sent in self.crowd.sent.items() if sent.job_id == job.job_id}
        for helper in HELPERS:
            if lost := (self.crowd.acknowledged & of_job) - used[helper]:
                yield f"{len(lost)} acknowledged updates of {name} are lost at {helper}"
        if forged := self.crowd.forged & (used[HELPERS[0]] | used[HELPERS[1]]):
            yield f"{len(forged)} forged updates of {name} count"
        counted = used[HELPERS[0]] & of_job
        if counted != used[HELPERS[1]] & of_job:
            yield f"the helpers hold different updates of {name}"
        yield from self._wrong_bits(job, counted)

    def _wrong_bits(self, job: JobRecord, counted: set[bytes]) -> Iterator[str]:
        """A job without noise ends with the bits of its updates."""
        name = f"job {job.job_id.hex()[:6]}"
        if job.job_id == self._job_id("noisy"):
            return
        found = JobFolder(self.fleet.data_dir, job.job_id).checkpoint()
        if found != self._in_the_clear(job, counted):
            yield f"{name} has not the bits of its updates in the clear"
        if job.job_id == self._job_id("all devices") and found != self._without_faults(job):
            yield f"{name} has not the bits of the run without faults"

    def _charged(self, helper: str, job_id: bytes) -> list[UpdateSpec]:
        specs = [held.spec for held in self.fleet.ledgers[helper].queries()]
        return [one for one in specs if isinstance(one, UpdateSpec) and one.round.job.job_id == job_id]

    def _in_the_clear(self, job: JobRecord, counted: set[bytes]) -> bytes:
        """The state that the updates of a job give, added up in the clear."""
        strategy, _ = read_instructions(_federated(job))
        state = strategy.start(CROWD_MODEL.initial(seeded(0, "first weights")))
        while (asked := strategy.next_round(state)) is not None:
            total = np.zeros(CROWD_MODEL.size, np.int64)
            for one in counted:
                sent = self.crowd.sent[one]
                stream = device_stream(self.seed, sent.index, sent.number)
                is_drawn = toss(asked.terms.sampling_rate, strategy.cover_rate, stream) is Part.UPDATE
                if sent.index == state.rounds_done and is_drawn:
                    examples = self.crowd.examples(sent.number)
                    total += strategy.device_vectors(CROWD_MODEL, asked, [examples], [stream])[0]
            state = strategy.step(state, asked, total)
        return state.encode()

    def _without_faults(self, job: JobRecord) -> bytes:
        """The state that a simulation of the same seed ends in, where nothing can go wrong."""
        strategy, _ = read_instructions(_federated(job))
        held: list[Examples] = [self.crowd.examples(number) for number in range(DEVICES)]
        each = len(held[0])
        simulated = Simulated(
            strategy=strategy,
            model=CROWD_MODEL,
            population=Population(members=tuple(np.arange(each) + each * one for one in range(DEVICES))),
            features=np.concatenate([one.features for one in held]),
            labels=np.concatenate([one.labels for one in held]),
        )
        first = CROWD_MODEL.initial(seeded(0, "first weights"))
        *_, last = simulate(simulated, first, seed=self.seed, evaluate=lambda _: {})
        state: ServerState = last.state
        return state.encode()


def _federated(job: JobRecord) -> Any:
    return job.plan.job


def run_crowd_seed(seed: int, *, only: frozenset[str] | None = None, rates: Rates | None = None) -> Verdict:
    """Simulate a seed of federated rounds, as `tests.simulation.running.run_seed` does one of reports."""
    aim = aimed_at(seed, of_updates())
    return run_world(seed, CrowdWorld, CrowdWorld.violations, only=only, rates=rates, aim=aim)

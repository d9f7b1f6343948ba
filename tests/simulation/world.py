"""One simulated run: people and browsers act on a fleet while things go wrong; then everything is repaired, and settles.

What people do is a list of steps made from the seed alone, each with a name. A run can be given the names of the steps and faults that
may happen; all others are left out. That is what `tests.simulation.shrinking` works with.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from adserver.dataset_sealing import DatasetSealer
from adserver.datasets import Dataset, DatasetState, DatasetStore
from adserver.ingest.intake import Intake
from adserver.job_folder import JobFolder
from adserver.job_state import FINAL, STOPPED
from adserver.job_store import JobStore
from adserver.plan import Optimizer, OptimizerKind, Schedule, TrainingPlan
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.job import JobSpec, sampling_numerator
from maskedlark.model.graph import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.report import Example
from maskedlark.rpc.wire import decode_report, encode_report
from maskedlark.upload import Sealer
from tests.builders import NOW, examples
from tests.helper.parties import MODEL as ENCODED_MODEL
from tests.simulation.faults import Faults
from tests.simulation.fleet import HELPERS, WORKERS, Fleet, Running
from tests.simulation.kernel import Kernel, Killed
from tests.simulation.observer import Observer
from tests.simulation.patches import patched

MODEL: Final = parse(ENCODED_MODEL, num_features=4)
_EVERYONE: Final = (*HELPERS, *WORKERS, "ingest", "desk")
_SETTLE_S: Final = 900.0
_RESEND_S: Final = (1.0, 4.0)
_ATTEMPTS: Final = 40
_COMMANDS: Final = 6
_COMMAND_AGAIN_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much happens in a run.

    Attributes:
        reports: How many browsers have something to send.
        datasets: How often a dataset is sealed, evenly spread.
        jobs_each: Jobs for each dataset.
        spread_s: Over how long.
    """

    reports: int = 240
    datasets: int = 4
    jobs_each: int = 2
    spread_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that a person or a browser does."""

    name: str
    at_s: float
    act: Callable[[], None]


@dataclass(kw_only=True)
class World:
    """A fleet, and what is done to it.

    Attributes:
        seed: Decides everything.
        folder: Empty.
        scale: How much happens.
        faults: What goes wrong.
        only: If given, the names of the steps that are taken.
    """

    seed: int
    folder: Path
    scale: Scale = field(default_factory=Scale)
    faults: Faults
    only: frozenset[str] | None = None
    operations: int = 0
    acknowledged: set[bytes] = field(default_factory=set)
    trace: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel = Kernel(float(NOW))
        self.fleet = Fleet(kernel=self.kernel, faults=self.faults, folder=self.folder)
        self.observer = Observer(self.fleet, self.note)
        self.examples: dict[bytes, Example] = {}
        self.jobs: list[bytes] = []
        self.submitted = 0

    def note(self, what: str) -> None:
        """Write something down: two runs of a seed write the same."""
        self.trace.append(f"{self.kernel.now_s:.6f} {what}")

    def digest(self) -> str:
        """Of all that was written down."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def run(self, check: "Callable[[World], list[str]]") -> list[str]:
        """Let it all happen, and look at what came of it.

        Args:
            check: Looks at the settled world, while it is still there.

        Returns:
            What must never happen, but did.
        """
        with _errors_noted(self.kernel), patched(self.kernel, self.fleet.network, self.fleet.write_durably, self.seed):
            self.fleet.start_all()
            for step in self._steps():
                if self.only is None or step.name in self.only:
                    self.taken.append(step.name)
                    self.kernel.at(step.at_s, partial(self._take, step))
            self.kernel.run(NOW + self.scale.spread_s)
            self._settle()
            found = [*self.kernel.complaints, *self.observer.violations, *check(self)]
            self.fleet.stop_all()
        self.operations += self.fleet.network.delivered + self.fleet.starts
        return found

    # --- what happens

    def _steps(self) -> list[Step]:
        stream, scale = Random(f"{self.seed} steps"), self.scale
        steps = [
            Step(name=f"upload {number}", at_s=stream.uniform(0, 0.8 * scale.spread_s), act=partial(self._send, number, encoded, report_id))
            for number, (report_id, encoded) in enumerate(self._reports())
        ]
        for number in range(scale.datasets):
            at_s = (number + 1) * 0.85 * scale.spread_s / scale.datasets
            steps.append(Step(name=f"seal {number}", at_s=at_s, act=partial(self._at_desk, self._seal)))
            for job in range(scale.jobs_each):
                submit = partial(self._at_desk, partial(self._submit, number * scale.jobs_each + job))
                steps.append(Step(name=f"submit {number}.{job}", at_s=at_s + stream.uniform(1, 25), act=submit))
            for what, chance, act in (("cancel", 0.25, self._cancel), ("abandon", 0.5, self._abandon)):
                if stream.random() < chance:
                    steps.append(Step(name=f"{what} {number}", at_s=at_s + stream.uniform(0, 20), act=partial(self._at_desk, act)))
        for number in range(6):
            who = stream.choice(_EVERYONE)
            steps.append(Step(name=f"kill {number}", at_s=stream.uniform(0, scale.spread_s), act=partial(self._kill, who)))
        for number in range(3):
            who, skew_s = stream.choice(_EVERYONE), stream.uniform(-40, 40)
            steps.append(Step(name=f"skew {number}", at_s=stream.uniform(0, scale.spread_s), act=partial(self._skew, who, skew_s)))
        for number in range(2):
            who, length_s = stream.choice(WORKERS), stream.uniform(5, 40)
            steps.append(Step(name=f"pause {number}", at_s=stream.uniform(0, scale.spread_s), act=partial(self._pause, who, length_s)))
        return steps

    def _reports(self) -> list[tuple[bytes, bytes]]:
        """Every browser's report and its id, sealed."""
        sealer, randomness = Sealer(self.fleet.bundle), seeded(self.seed, "reports of a simulation")
        made = []
        for example in examples(self.fleet.task, self.scale.reports, seeded(self.seed, "people of a simulation")):
            report = sealer.report(example, unix_s=NOW, randomness=randomness)
            self.examples[report.report_id] = example
            made.append((report.report_id, encode_report(report)))
        return made

    def _take(self, step: Step) -> None:
        self.operations += 1
        self.note(step.name)
        step.act()

    def _send(self, number: int, encoded: bytes, report_id: bytes, attempt: int = 0) -> None:
        """A browser uploads, and sends again until it is told that the report is there."""
        if attempt == _ATTEMPTS:
            return
        fault = self.faults.of_message(f"upload {number}")
        stream = self.faults.random(f"upload {number} {attempt}")
        is_heard = False
        if fault in ("late", "duplicate"):
            self.kernel.at(stream.uniform(0.5, 30), partial(self._arrive, number, encoded))
        if fault not in ("drop_request", "late", "cut"):
            is_heard = self._arrive(number, encoded) and fault != "drop_reply"
        if is_heard:
            self.acknowledged.add(report_id)
        else:
            self.kernel.at(stream.uniform(*_RESEND_S), partial(self._send, number, encoded, report_id, attempt + 1))

    def _arrive(self, number: int, encoded: bytes) -> bool:
        """An upload reaches the ad server; whether it is acknowledged."""
        running = self.fleet.running["ingest"]
        if not running.process.is_alive:
            return False
        self.operations += 1
        intake: Intake = running.part
        try:
            is_new = intake.take(decode_report(encoded))
        except Killed:
            return False
        self.note(f"upload {number} {'accepted' if is_new else 'duplicate'}")
        return True

    def _at_desk(self, command: Callable[[Running], str]) -> None:
        """A person types a command; what it says is noted."""
        desk = self.fleet.desk()
        if not desk.process.is_alive:
            return

        def body() -> None:
            try:
                said = command(desk)
            except MaskedLarkError as error:
                said = f"{type(error).__name__} {getattr(error, 'reason', '')}"
            self.note(said)

        self.kernel.spawn(desk.process, body, "command")

    def _seal(self, desk: Running) -> str:
        """Seal a dataset; a person types the command again while a helper is away."""
        handles = seeded(self.seed, f"handles from {self.kernel.now_s}")
        sealer = DatasetSealer(
            engine=desk.engine, helpers=self.fleet.clients(desk.engine), task=self.fleet.task, clock=desk.process.clock, randomness=handles
        )
        for _ in range(_COMMANDS):
            try:
                return f"sealed {sealer.seal(max_reports=70).size}"
            except HelperUnavailable:
                self.kernel.sleep(_COMMAND_AGAIN_S)
        return "gave up sealing"

    def _submit(self, number: int, desk: Running) -> str:
        committed = [one for one in DatasetStore(desk.engine).all() if one.state is DatasetState.COMMITTED]
        if not committed:
            return "nothing to train on"
        plan = self._plan(number, committed[-1])
        JobFolder(self.fleet.data_dir, plan.job.job_id).write_submission(ENCODED_MODEL, None)
        JobStore(desk.engine, desk.process.clock).submit(plan)
        return f"submitted {number}"

    def _plan(self, number: int, dataset: Dataset) -> TrainingPlan:
        stream = Random(f"{self.seed} job {number}")
        rounds = stream.randint(2, 8)
        job = JobSpec(
            job_id=seeded(self.seed, f"job {number}")(16),
            task_id=self.fleet.task.task_id,
            dataset_id=dataset.dataset_id or b"",
            model_digest=MODEL.digest,
            loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
            rounds=rounds,
            sampling_numerator=sampling_numerator(expected_batch_size=dataset.size * stream.uniform(0.3, 1), dataset_size=dataset.size),
            noise_multiplier=0.0,
        )
        return TrainingPlan(
            task=self.fleet.task,
            job=job,
            dataset_size=dataset.size,
            optimizer=Optimizer(kind=stream.choice(list(OptimizerKind)), learning_rate=0.3),
            schedule=Schedule(),
            eval_every=rounds,
        )

    def _cancel(self, desk: Running) -> str:
        store = JobStore(desk.engine, desk.process.clock)
        left = [job for job in store.all() if job.state not in FINAL]
        if not left:
            return "nothing to cancel"
        store.cancel(left[-1].job_id)
        return "cancelled"

    def _abandon(self, desk: Running) -> str:
        store = DatasetStore(desk.engine)
        dataset = store.committing(self.fleet.task.task_id)
        if dataset is None:
            return "nothing to abandon"
        store.release(dataset)
        return "abandoned"

    def _kill(self, who: str) -> None:
        self.fleet.running[who].process.kill()

    def _skew(self, who: str, skew_s: float) -> None:
        self.fleet.skews[who] = self.fleet.running[who].process.skew_s = skew_s

    def _pause(self, who: str, length_s: float) -> None:
        self.fleet.running[who].process.paused_until_s = self.kernel.now_s + length_s

    # --- and its end

    def _settle(self) -> None:
        """No more faults; whoever is down comes back; commits that were begun are finished; jobs end."""
        self.faults.is_on = False
        deadline_s = self.kernel.now_s + _SETTLE_S
        self.kernel.run(self.kernel.now_s + 45.0)
        self._at_desk(self._finish_commits)
        while self._unsettled() and self.kernel.now_s < deadline_s:
            self.kernel.run(self.kernel.now_s + 5.0)
        if self._unsettled():
            self.kernel.complain(f"not settled {_SETTLE_S:.0f} s after the last fault: {self._unsettled()}")

    def _finish_commits(self, desk: Running) -> str:
        while DatasetStore(desk.engine).committing(self.fleet.task.task_id) is not None:
            self._seal(desk)
        return "commits finished"

    def _unsettled(self) -> list[str]:
        jobs = JobStore(self.fleet.desk().engine, self.fleet.desk().process.clock).all()
        return [
            f"job {job.job_id.hex()[:6]} {job.state}"
            for job in jobs
            if job.state not in STOPPED or (job.state in FINAL and not job.is_closed)
        ]


class _ErrorsNoted(logging.Handler):
    """A logged traceback is a bug that some `except` survived."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(logging.ERROR)
        self._kernel = kernel

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            error = record.exc_info[1]
            self._kernel.complain(f"logged by {record.name}: {type(error).__name__}: {error}")


class _errors_noted:  # noqa: N801  a context manager
    def __init__(self, kernel: Kernel) -> None:
        self._handler = _ErrorsNoted(kernel)

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._handler)

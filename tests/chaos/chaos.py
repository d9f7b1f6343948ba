"""`make chaos`: two helpers and an ad server as real processes.

Every few seconds one process is killed (SIGKILL): a helper, one of its workers, the ad server, or a command
that seals a dataset. Meanwhile four jobs run, one of them with random allocation, browsers upload without
pause, datasets of what they upload are sealed, and the helpers' keys are rotated.

It shows that all jobs end once, with the same model to the bit where they are alike; that each record takes
part once an epoch; that no report is lost after the ad server
acknowledged it, and none used twice; that both helpers charge each round that was used once, and no other;
and that no state lasts longer than two leases, on a machine of one's own. Then federated jobs run while
their devices are killed too (`tests.chaos.update_rounds`), for a fifth of the time, and the jobs once more
over two ad servers and two intakes on PostgreSQL (`tests.chaos.replicas`). Ends with one JSON object;
federated rounds are under `updates`, the last part under `replicas`.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from docs.tutorial.fleet import HELPERS, CommandFailed, Fleet
from tests.chaos import update_rounds
from tests.chaos.books import Books
from tests.chaos.counted_fleet import CountedFleet
from tests.chaos.disturbance import ADSERVER, SEALING, WORKER, Disturbance, Operator
from tests.chaos.outcome import JobsUnderFire
from tests.chaos.uploads import Uploads
from tests.chaos.watch import LOOK_EVERY_S, Stillness, repeating, share_of_processors
from tests.fleet_commands import create_model, create_task, seal, send_reports
from tests.progress import Show, shown

JOBS: Final = 3
PARTS: Final = ("jobs", "updates", "replicas")
LEASED: Final = frozenset({"running", "waiting"})
LEASE_S: Final = 6.0
_TRIAL_ROUNDS: Final = 25
_BATCH: Final = 150
"""Of the job with random allocation: three rounds an epoch."""
_BUSY_SHARE: Final = 0.8
_UPDATES_SHARE: Final = 0.2
"""Of the time: how long federated jobs are disturbed, after the others."""
_QUIET_S: Final = 300.0
"""How much longer than the disturbance the jobs may take afterwards."""
_SEALING_S: Final = 180.0
"""How long what waits may be sealed, again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(JobsUnderFire):
    """What happened. Wanted: all jobs ended once, one model, and zeros.

    Attributes:
        distinct_models: Models that the jobs of the same plan trained.
        reports_acknowledged: Reports that the ad server said to hold.
        reports_lost: Of these, those that are in no dataset of a helper after all that waits was sealed.
        reports_used_twice: Reports in two datasets, at one helper only, or elsewhere than the ad server says.
        rounds_counted: Rounds of random allocation that helpers computed, each as often as it was.
        participations_twice: Records that took part in two rounds of an epoch of a job at a helper, over all
            kills and restarts.
        datasets: Sealed meanwhile.
        datasets_half_sealed: Of these, those that one helper has and another party has not, or that are not
            finished.
        unlogged_acts: Acts without an entry in the audit log of a helper or the ad server, and the other way
            round; and logs whose chain does not hold.
        double_charges: Rounds that a helper charged and the ad server did not use, or that it used and a
            helper did not charge.
        stuck: How often a state of a job or of a dataset lasted longer than two leases, all who could change
            it being up; and datasets that were not finished though everybody was up and they were sealed
            again.
        failed_opens: Shares that a helper had no key for, or could not open.
        rotations: Of a helper's HPKE keys.
    """

    distinct_models: int
    reports_acknowledged: int
    reports_lost: int
    reports_used_twice: int
    rounds_counted: int
    participations_twice: int
    datasets: int
    datasets_half_sealed: int
    unlogged_acts: int
    double_charges: int
    stuck: int
    failed_opens: int
    rotations: int

    @property
    def is_right(self) -> bool:
        """Whether everything held, and something happened."""
        wrong = (
            self.reports_lost
            + self.reports_used_twice
            + self.datasets_half_sealed
            + self.unlogged_acts
            + self.double_charges
            + self.stuck
            + self.failed_opens
            + self.participations_twice
        )
        happened = self.kills > 0 and self.reports_acknowledged > 0 and self.datasets > 1
        happened = happened and self.rounds_counted > 0
        return self.jobs_ended_once == self.jobs and self.distinct_models == 1 and not wrong and happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A fleet that runs, with one task, and those who use and disturb it."""

    fleet: CountedFleet
    books: Books
    task: str
    uploads: Uploads
    operator: Operator
    disturbance: Disturbance


def run(seconds: float, folder: Path, seed: int, show: Show = lambda _done, _note: None) -> Outcome:
    """One run; the fleet's folder keeps everything that was written.

    `show` is told seconds, of twice as many in all.
    """
    began = time.monotonic()
    with CountedFleet(folder=folder, is_no_noise=True, adserver_options=("--refresh-keys", "1")) as fleet:
        task, books = make_task(fleet), Books(fleet=fleet)
        operator = Operator(fleet, task)
        scene = Scene(
            fleet=fleet,
            books=books,
            task=task,
            uploads=Uploads(fleet, task),
            operator=operator,
            disturbance=Disturbance(fleet, operator, seed),
        )
        return observed(
            scene, seconds, began, show, disturbing=lambda _: disturb(scene.disturbance, seconds, show)
        )


def observed(
    scene: Scene,
    seconds: float,
    began: float,
    show: Show,
    *,
    disturbing: Callable[[int], Sequence[str]],
) -> Outcome:
    """What becomes of four jobs and of reports that come without pause while `disturbing` runs, and after it.

    Args:
        scene: The fleet and the others.
        seconds: About how long `disturbing` takes: the jobs are made to last longer.
        began: On the monotonic clock, when the run did.
        show: Told seconds.
        disturbing: Kills processes; told how many rounds the jobs have, it may submit more of the same.
    """
    fleet, books, task, disturbance = scene.fleet, scene.books, scene.task, scene.disturbance
    with scene.uploads.running():
        rounds = rounds_for(fleet, books, task, seconds)
        alike = [submit(fleet, task, rounds) for _ in range(JOBS)]
        jobs = [*alike, submit(fleet, task, rounds, "--batch-size", str(_BATCH))]
        watched = Watched(books, jobs, disturbance)
        with repeating(watched.look, "watch", LOOK_EVERY_S):
            with scene.operator.sealing():
                more = disturbing(rounds)
            alike, jobs = [*alike, *more], [*jobs, *more]
            under_fire = books.rounds_done(jobs)
            await_end(books, jobs, seconds, show)
    seal_the_rest(fleet, books, task)
    counted = fleet.participation()
    used = books.used_reports(HELPERS[0]) & books.used_reports(HELPERS[1])
    return Outcome(
        jobs=len(jobs),
        jobs_ended_once=sum(books.ended_once(job, rounds) for job in jobs),
        rounds=rounds,
        rounds_under_fire=under_fire,
        distinct_models=len({exported(fleet, job) for job in alike if books.state_of(job) == "done"}),
        reports_acknowledged=len(scene.uploads.acknowledged),
        reports_lost=len(scene.uploads.acknowledged - used),
        reports_used_twice=books.used_twice(),
        rounds_counted=len(counted.computed),
        participations_twice=len(counted.violations()),
        datasets=books.num_datasets(),
        datasets_half_sealed=books.half_sealed(),
        unlogged_acts=books.unlogged_acts(),
        double_charges=books.wrong_charges(jobs),
        stuck=watched.stuck + books.unfinished_datasets(),
        failed_opens=books.failed_opens(),
        rotations=disturbance.rotations,
        kills=disturbance.kills.total(),
        killed=dict(disturbance.kills),
        seconds=round(time.monotonic() - began, 1),
    )


class Watched:
    """The states of jobs and datasets, and who is up: what may not last."""

    def __init__(self, books: Books, jobs: Sequence[str], disturbance: Disturbance) -> None:
        self._books = books
        self._disturbance = disturbance
        # The lease of a job that is said to run is renewed, or an ad server that is up queues the job again.
        self._leases = {bytes.fromhex(job): Stillness(limit_s=2 * LEASE_S) for job in jobs}
        # A job that waits for a helper finds it once everybody is up.
        self._waits = {bytes.fromhex(job): Stillness(limit_s=2 * LEASE_S) for job in jobs}
        # While some jobs are queued, one of them or another one runs.
        self._queue = Stillness(limit_s=2 * LEASE_S)
        # The operator seals again and again: what one command leaves, the next one finishes.
        self._datasets: defaultdict[bytes, Stillness] = defaultdict(lambda: Stillness(limit_s=2 * LEASE_S))

    @property
    def stuck(self) -> int:
        """How often something lasted too long."""
        return sum(
            one.times
            for one in (self._queue, *self._leases.values(), *self._waits.values(), *self._datasets.values())
        )

    def look(self) -> None:
        """Take note of how things are."""
        down, share = self._disturbance.down, share_of_processors()
        found = self._books.rows(ADSERVER, "SELECT job_id, state, rounds_done, lease_until_s FROM jobs")
        for job, state, rounds_done, lease_until_s in found:
            if bytes(job) in self._leases:
                self._leases[bytes(job)].look(
                    lease_until_s, may_rest=state not in LEASED or ADSERVER in down, share=share
                )
                self._waits[bytes(job)].look(
                    rounds_done, may_rest=state != "waiting" or bool(down), share=share
                )
        states = [state for _, state, _, _ in found]
        interrupted = self._disturbance.kills[SEALING] + self._disturbance.kills[WORKER]
        for handle, state in self._books.rows(
            ADSERVER, "SELECT handle, state FROM datasets WHERE state != 'committed'"
        ):
            self._datasets[bytes(handle)].look((state, interrupted), may_rest=bool(down), share=share)
        self._queue.look(
            states.count("queued"),
            may_rest="queued" not in states or bool(LEASED & set(states)) or ADSERVER in down,
            share=share,
        )


def make_task(fleet: Fleet) -> str:
    """A task whose first dataset is sealed before anything goes wrong: the jobs run over it."""
    task = create_task(
        fleet,
        "chaos",
        "--classes 2 --default-label 0 --num-features 30 --min-batch-size 50 --no-noise --epsilon 1"
        " --clip-norm 1",
    )
    send_reports(fleet, task, "--source wbcd --seed 3", to=f"http://{fleet.http}")
    seal(fleet, task)
    create_model(fleet, fleet.folder / "untrained.onnx", (30, 8, 1), seed=2)
    return task


def submit(fleet: Fleet, task: str, rounds: int, *more: str) -> str:
    """A job over the first dataset; its id."""
    dataset = fleet.adserver_json("dataset", "list", options=False)[0]["dataset_id"]
    submitted = fleet.adserver_json(
        "job", "submit", "--task", task, "--dataset", dataset, "--model",
        str(fleet.folder / "untrained.onnx"),
        "--loss", "binary_cross_entropy_with_logits", "--rounds", str(rounds), "--learning-rate", "0.1",
        *more, options=False,
    )  # fmt: skip
    return str(submitted["job_id"])


def rounds_for(fleet: Fleet, books: Books, task: str, seconds: float) -> int:
    """As many rounds for each job as keep all of them busy for most of `seconds` if nothing disturbs them, by
    a trial of a few rounds.

    So they do not end before the disturbance does, and end soon after it.
    """
    trial = submit(fleet, task, _TRIAL_ROUNDS, "--wait")
    return max(5, int(books.rounds_per_s(trial) * seconds * _BUSY_SHARE / (JOBS + 1)))


def disturb(disturbance: Disturbance, seconds: float, show: Show) -> Sequence[str]:
    """Strike until the time is over; submits no jobs."""
    began = time.monotonic()
    show(0.0, "the first kill comes")
    while time.monotonic() < began + seconds:
        disturbance.strike()
        show(
            time.monotonic() - began, f"{disturbance.kills.total()} kills, {disturbance.rotations} rotations"
        )
    return ()


def await_end(books: Books, jobs: Sequence[str], seconds: float, show: Show) -> None:
    """Until every job has stopped and is closed at the helpers, or for as long as is bearable."""
    began = time.monotonic()
    while (
        not (books.have_stopped(jobs) and books.are_closed(jobs))
        and time.monotonic() < began + seconds + _QUIET_S
    ):
        time.sleep(0.5)
        show(seconds + time.monotonic() - began, f"no more kills; {books.rounds_done(jobs)} rounds are done")


def seal_the_rest(fleet: Fleet, books: Books, task: str) -> None:
    """First what an interrupted command left to be finished, if there is something; then all that waits.

    What is left then is stuck.
    """
    until = time.monotonic() + _SEALING_S
    while not books.is_all_sealed() and time.monotonic() < until:
        with suppress(CommandFailed):
            seal(fleet, task, "--allow-small --deadline 60 --round-deadline 60")


def exported(fleet: Fleet, job: str) -> bytes:
    out = fleet.folder / f"{job}.onnx"
    fleet.adserver("model", "export", "--job", job, str(out), options=False)
    return out.read_bytes()


def main() -> None:
    """Run and print the one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, help="one part, for all of --seconds; default: all")
    parser.add_argument("--kills", type=int, default=20, help="of two intakes and two ad servers")
    arguments = parser.parse_args()
    told: dict[str, Any] = {}
    is_right = True
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "jobs"):
            with shown("chaos", 2 * arguments.seconds) as show:
                outcome = run(arguments.seconds, Path(folder) / "jobs", arguments.seed, show)
            told, is_right = asdict(outcome), outcome.is_right
        if arguments.only in (None, "updates"):
            seconds = arguments.seconds * (1.0 if arguments.only else _UPDATES_SHARE)
            with shown("chaos of update rounds", 2 * seconds) as show:
                updates = update_rounds.run(seconds, Path(folder) / "updates", arguments.seed, show)
            told["updates"], is_right = asdict(updates), is_right and updates.is_right
        if arguments.only in (None, "replicas"):
            from tests.chaos import replicas  # it imports this module

            with shown("chaos of replicas", 2 * replicas.seconds_for(arguments.kills)) as show:
                spread = replicas.run(arguments.kills, Path(folder) / "replicas", arguments.seed, show)
            told["replicas"], is_right = asdict(spread), is_right and spread.is_right
    print(json.dumps(told))  # the benchmark's output
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()

"""Federated jobs while every process is killed: helpers and their workers, the ad server, the devices.

Two `dp-fedavg` jobs run side by side, one without noise and one with. Their devices send over the network,
some twice and some late, and somebody asks the helpers for every round again and again.

At the end each round of each job has one charge and one answer at each helper, across restarts; no update is
lost that was acknowledged; no budget is passed; and the models are, to the bit, those of the sums that the
ledgers hold. Without noise, those sums are of the updates in the clear.
"""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adserver.quickstart.ports import free_ports
from docs.tutorial.fleet import HELPERS, HOST, Fleet
from maskedlark.federated.dense import DenseModel
from tests.chaos.books import Books
from tests.chaos.outcome import JobsUnderFire
from tests.chaos.update_books import Training, UpdateBooks
from tests.chaos.update_devices import (
    CLASSES,
    DEVICES,
    FEATURES,
    LEAST,
    DeviceProcess,
    holdings,
    write_table,
)
from tests.chaos.update_disturbance import Asker, Killer
from tests.fleet_commands import create_task, submit
from tests.patience import HANGS_S
from tests.progress import Show

WIDTHS: Final = (FEATURES, CLASSES)
EPSILON: Final = 16.0
COLLUSION_EPSILON: Final = 64.0
_SECONDS_A_ROUND: Final = 4.0
_LEAST_ROUNDS: Final = 4
_LEAST_KILLS: Final = 8
"""Also where processes take longer to start than the time that was given."""
_WINDOW_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(JobsUnderFire):
    """What happened. Wanted: all jobs, and zeros.

    Attributes:
        updates_acknowledged: That devices know of.
        updates_lost: Of these, those that do not count at both helpers.
        updates_misplaced: That count at one helper only, or not in their own round alone.
        wrong_charges: Rounds that a helper charged twice, not at all, or over other updates.
        asked_again: How often a helper was asked for a round beside the ad server, and answered.
        second_answers: Of these, answers that are not those of the ledger at the end.
        models_wrong: Models that are not those of the sums in the ledgers; without noise, of the updates.
        budgets_passed: Budgets that are overspent, and tasks for which the helpers charged unequally.
        gave_up: How often devices' processes ended by themselves. That is not wrong: one that is started
            while the ad server is away says so and ends, and is started again.
    """

    updates_acknowledged: int
    updates_lost: int
    updates_misplaced: int
    wrong_charges: int
    asked_again: int
    second_answers: int
    models_wrong: int
    budgets_passed: int
    gave_up: int

    @property
    def is_right(self) -> bool:
        """Whether everything held, and something happened."""
        wrong = (
            self.updates_lost
            + self.updates_misplaced
            + self.wrong_charges
            + self.second_answers
            + self.models_wrong
            + self.budgets_passed
        )
        happened = self.kills > 0 and self.updates_acknowledged > 0 and self.asked_again > 0
        return self.jobs_ended_once == self.jobs and not wrong and happened


def run(seconds: float, folder: Path, seed: int, show: Show = lambda _done, _note: None) -> Outcome:
    """One run; the folder keeps everything that was written. `show` is told seconds, of twice as many."""
    began = time.monotonic()
    rounds = max(_LEAST_ROUNDS, int(seconds / _SECONDS_A_ROUND))
    table = folder / "people.csv"
    folder.mkdir(parents=True, exist_ok=True)
    write_table(table)
    # Devices find the ad server where it was, also after it was killed.
    where = ("--http-listen", f"{HOST}:{free_ports(1)[0]}")
    allowed = ("--max-epsilon", str(EPSILON), "--max-collusion-epsilon", str(COLLUSION_EPSILON))
    with Fleet(
        folder=folder / "parties", is_no_noise=True, helper_options=allowed, adserver_options=where
    ) as fleet:
        trainings = [start(fleet, table, rounds, is_noisy=noisy) for noisy in (False, True)]
        jobs, books = [one.books.job for one in trainings], Books(fleet=fleet)
        killer, asker = Killer(fleet, trainings, seed), Asker(fleet, trainings, seed)
        with ExitStack() as devices:
            for one in trainings:
                devices.enter_context(one.devices.running())
            with asker.asking():
                fired = time.monotonic()
                while not books.have_stopped(jobs) and (
                    time.monotonic() < fired + seconds or killer.kills.total() < _LEAST_KILLS
                ):
                    killer.strike()
                    show(time.monotonic() - fired, f"{killer.kills.total()} kills")
                under_fire = books.rounds_done(jobs)
                await_end(books, jobs, seconds, show)
        for role in (0, 1):  # once more, of helpers that have nothing in memory
            fleet.kill(HELPERS[role])
            fleet.start_helper(role)
        asker.ask_all()
        acknowledged = [one.devices.acknowledged() for one in trainings]
        held = holdings(table)
        return Outcome(
            jobs=len(jobs),
            jobs_ended_once=sum(books.ended_once(job, rounds) for job in jobs),
            rounds=rounds,
            rounds_under_fire=under_fire,
            updates_acknowledged=sum(map(len, acknowledged)),
            updates_lost=sum(
                one.books.lost(known) for one, known in zip(trainings, acknowledged, strict=True)
            ),
            updates_misplaced=sum(one.books.misplaced() for one in trainings),
            wrong_charges=sum(one.books.wrong_charges() for one in trainings),
            asked_again=asker.answered,
            second_answers=asker.second_answers(),
            models_wrong=sum(not one.books.has_the_model(held, is_noisy=one.is_noisy) for one in trainings),
            budgets_passed=sum(one.books.passed_budgets() for one in trainings),
            gave_up=sum(one.devices.gave_up for one in trainings),
            kills=killer.kills.total(),
            killed=dict(killer.kills),
            seconds=round(time.monotonic() - began, 1),
        )


def start(fleet: Fleet, table: Path, rounds: int, *, is_noisy: bool) -> Training:
    """A task and a job, whose budget is just enough."""
    task = create_task(
        fleet,
        f"chaos at home, noisy: {is_noisy}",
        f"--classes {CLASSES} --num-features {FEATURES} --updates {DenseModel(widths=WIDTHS).size}"
        f" --frac-bits 24 --clip-norm 1 --min-batch-size {LEAST} --max-dataset-size 100 --epsilon {EPSILON}"
        f" --collusion-epsilon {COLLUSION_EPSILON} --delta 1e-5"
        f" {'--mechanism gaussian' if is_noisy else '--no-noise'}",
    )
    settings = table.with_name("strategy.json")
    settings.write_text(json.dumps({"devices": DEVICES, "sampling_rate": 0.5}))
    job = submit(
        fleet,
        f"--task {task} --strategy dp-fedavg --settings {settings} --rounds {rounds} --layers"
        f" {FEATURES},{CLASSES} --window {_WINDOW_S} --least-devices {LEAST}"
        f" {f'--epsilon {EPSILON}' if is_noisy else ''}",
    )["job_id"]
    books = UpdateBooks(books=Books(fleet=fleet), task=task, job=job, rounds=rounds)
    return Training(books=books, devices=DeviceProcess(fleet, task, table), is_noisy=is_noisy)


def await_end(books: Books, jobs: Sequence[str], seconds: float, show: Show) -> None:
    """Until every job has stopped, or for as long as is bearable."""
    began = time.monotonic()
    while not books.have_stopped(jobs) and time.monotonic() < began + HANGS_S:
        time.sleep(0.5)
        show(seconds + time.monotonic() - began, f"no more kills; {books.rounds_done(jobs)} rounds are done")

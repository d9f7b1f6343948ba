"""`make same-round`: five rounds, sent to a real helper 10,000 times by eight callers, while it dies.

It dies in each round at the moments of `dying_helper`: while the round is computed for the first time, before
it is charged, before that is committed, and after; then once more while callers have answers and ask again.
A caller whose connection is lost asks again. There is noise, so that a second computation would show. Then
whole epochs of random allocation (`same_epoch`). Ends with one JSON object.

With `--cluster` the helper has a worker on Ray in each of its lives, from before the first call on, which is
lost with it. It ends after the rounds.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock
from typing import Final

from adserver.peers.client import HelperClient
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.errors import HelperUnavailable
from maskedlark.model import weights
from maskedlark.model.graph import Model
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.samples import Samples
from maskedlark.reports.upload import Report, Sealer
from tests.builders import examples, job_spec
from tests.chaos.books import Books
from tests.chaos.uploads import Uploads
from tests.e2e.dying_helper import DyingFleet, Moment
from tests.fleet_commands import create_model, create_task, seal
from tests.progress import Show, shown

ROUNDS: Final = 5
_ANSWERING: Final = "answering"
"""A kill from outside, once half of a round's answers are there."""
REPORTS: Final = 100
FEATURES: Final = 4
OPTIONS: Final = ("--release-grid-ms", "0.5")
"""Of the helpers: the grid that answers leave on would be most of the time."""
_THREADS: Final = 8
_LOOK_S: Final = 0.002
_AWAY_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came back. Wanted: one distinct answer for each round, and each charged once.

    Attributes:
        rounds: How many were asked for.
        sent: How often a round was asked for and answered, of all rounds together; what callers asked for
            beyond that, while the last kill was to come, is not counted.
        kills: How often the helper died, by the moment of a round.
        kills_at_workers: Of those while a round was computed, how many when a worker had the work.
        charged_otherwise: Of all, after which the ledger had not the charges that the moment tells.
        lost: Calls that died with the helper, and were made again.
        distinct_answers: By round and content.
        rounds_charged: By the helper's own count.
        seconds: Of the asking.
    """

    rounds: int
    sent: int
    kills: dict[str, int]
    kills_at_workers: int
    charged_otherwise: int
    lost: int
    distinct_answers: int
    rounds_charged: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether each round has one answer and one charge, and was killed at each moment."""
        is_tried = self.kills == dict.fromkeys([*Moment, _ANSWERING], self.rounds)
        is_once = self.distinct_answers == self.rounds_charged == self.rounds
        return is_tried and is_once and not self.charged_otherwise


@dataclass(kw_only=True)
class Asking:
    """One round, asked for by many threads.

    `helper` is the client of the helper's present life, and another one after each kill. Callers ask on until
    it has died for the last time, so that it dies under way however seldom the thread that kills it runs;
    then `left` is below zero by as many answers.
    """

    spec: JobSpec
    round_index: int
    sent: bytes
    length: int
    left: int
    helper: HelperClient
    answers: Counter[bytes] = field(default_factory=Counter)
    lost: int = 0
    under_way: int = 0
    is_up: Event = field(default_factory=Event)
    has_died: bool = False
    is_over: bool = False
    lock: Lock = field(default_factory=Lock)

    def ask_on(self) -> None:
        """One caller, until there were enough answers."""
        while self._takes_a_turn():
            answer = self._ask()
            with self.lock:
                self.under_way -= 1
                if answer is None:  # the helper died: the turn is given back
                    self.lost += 1
                    self.left += 1
                else:
                    self.answers[sha256(answer).digest()] += 1

    def _takes_a_turn(self) -> bool:
        if not self.is_up.wait(_AWAY_S):
            raise TimeoutError("the helper did not come back")
        with self.lock:
            is_wanted = (self.left > 0 or not self.has_died) and not self.is_over
            self.left -= is_wanted
            self.under_way += is_wanted
        return is_wanted

    def _ask(self) -> bytes | None:
        helper = self.helper
        try:
            return helper.run_round(self.spec, self.round_index, self.sent, self.length).encode()
        except HelperUnavailable:
            if helper is self.helper and self.is_up.is_set():
                time.sleep(_LOOK_S)  # killed a moment ago, and not known yet
            return None


def run(
    fleet: DyingFleet,
    times: int,
    show: Show = lambda _done, _note: None,
    *,
    rounds: int = ROUNDS,
    await_helper: Callable[[], None] = lambda: None,
) -> Outcome:
    """Have rounds answered `times` times together, by five lives of the helper each, and a last one.

    `await_helper` is called in each life before anybody asks.
    """
    task, dataset = sealed_dataset(fleet)
    path = create_model(fleet, fleet.folder / "again.onnx", (FEATURES, 1), seed=5)
    model = parse(path.read_bytes(), num_features=FEATURES)
    spec = replace(job_over(task, dataset, model), rounds=rounds + 1)
    sent = weights.encode([weights.quantise(values) for values in model.initial_values])
    address = (fleet.folder / "helper-0.address").read_text()
    began = time.monotonic()
    with ExitStack() as lives:

        def client() -> HelperClient:
            await_helper()
            return lives.enter_context(HelperClient(address, None, 30.0))

        helper, asked, kills = client(), list[Asking](), list[Kill]()
        helper.start_job(spec, path.read_bytes())
        for index in range(rounds):
            asking = Asking(
                spec=spec,
                round_index=index,
                sent=sent,
                length=model.num_parameters,
                left=times * (index + 1) // rounds - times * index // rounds,
                helper=helper,
            )
            kills += _asked_and_killed(fleet, asking, client, times * index // rounds, show)
            asked.append(asking)
            helper = asking.helper
        charged = helper.status().rounds_answered or 0
    return Outcome(
        rounds=rounds,
        sent=sum(one.answers.total() + one.left for one in asked),
        kills=dict(Counter(kill.moment for kill in kills)),
        kills_at_workers=sum(kill.where == "worker" for kill in kills),
        charged_otherwise=sum(not kill.is_charged_right for kill in kills),
        lost=sum(one.lost for one in asked),
        distinct_answers=sum(len(one.answers) for one in asked),
        rounds_charged=charged,
        seconds=round(time.monotonic() - began, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What there was when the helper died.

    Attributes:
        moment: Of the round.
        where: `worker` if one had the work of the round, else `head`.
        is_charged_right: Whether the ledger has the charges that this moment tells.
    """

    moment: str
    where: str
    is_charged_right: bool


def _asked_and_killed(
    fleet: DyingFleet, asking: Asking, client: Callable[[], HelperClient], before: int, show: Show
) -> list[Kill]:
    """Let the callers ask until they have enough, while the helper dies of each moment, and once more.

    `before` answers are those of earlier rounds.
    """
    kills: list[Kill] = []
    moments, half = iter(Moment), asking.left // 2
    fleet.die_at(next(moments))
    with ThreadPoolExecutor(_THREADS) as threads:
        asking.is_up.set()
        callers = [threads.submit(asking.ask_on) for _ in range(_THREADS)]
        try:
            while (waited := wait(callers, _LOOK_S, FIRST_EXCEPTION)).not_done and not any(
                one.exception() for one in waited.done
            ):
                show(before + asking.answers.total(), f"round {asking.round_index}, {len(kills)} kills")
                is_last = len(kills) == len(Moment)
                if fleet.is_dead or (is_last and asking.under_way and asking.answers.total() >= half):
                    kills.append(_killed(fleet, asking, is_last=is_last))
                    asking.has_died = is_last
                    if (moment := next(moments, None)) is not None:
                        fleet.die_at(moment)
                    fleet.start_helper(0)
                    asking.helper = client()
                    asking.is_up.set()
        finally:
            asking.is_over = True
            asking.is_up.set()
        for one in callers:
            one.result()
    return kills


def _killed(fleet: DyingFleet, asking: Asking, *, is_last: bool) -> Kill:
    """The helper is dead, or is killed now; what it left behind."""
    if is_last:
        fleet.kill(HELPERS[0])
        moment, where = _ANSWERING, "head"
    else:
        moment, where = fleet.await_death().split()
    asking.is_up.clear()
    is_charged = moment in {Moment.AFTER, _ANSWERING}
    ((charged,),) = Books(fleet=fleet).rows(
        HELPERS[0], "SELECT rounds_answered FROM jobs WHERE job_id = ?", asking.spec.job_id
    )
    return Kill(
        moment=moment,
        where=where,
        is_charged_right=charged == asking.round_index + is_charged,
    )


def sealed_dataset(fleet: Fleet) -> tuple[str, str]:
    """A task with noise and a dataset of it; both ids in hexadecimal."""
    task = make_task(fleet, "again")
    assert Uploads(fleet, task).send(new_reports(fleet, task, REPORTS, "of a dataset"))
    sealed = seal(fleet, task)
    assert sealed["admitted"] == REPORTS
    return task, sealed["dataset_id"]


def make_task(fleet: Fleet, name: str) -> str:
    """A small task with noise; its id in hexadecimal."""
    return create_task(
        fleet,
        name,
        f"--classes 2 --num-features {FEATURES} --min-batch-size 50 --epsilon 8 --collusion-epsilon 16"
        " --clip-norm 1",
    )


def new_reports(fleet: Fleet, task: str, count: int, seed: str) -> list[Report]:
    """Reports of a task, sealed and not sent."""
    sealer, randomness = Sealer(Uploads(fleet, task).bundle(), now=time.time()), seeded(0, seed)
    return [
        sealer.report(one, unix_s=time.time(), randomness=randomness)
        for one in examples(sealer.task, count, randomness)
    ]


def job_over(task: str, dataset: str, model: Model) -> JobSpec:
    """A job of two rounds, so that the first one's answer is kept."""
    return job_spec(
        job_id=b"sent over, again",
        task_id=bytes.fromhex(task),
        dataset_id=bytes.fromhex(dataset),
        model_digest=model.digest,
        rounds=2,
        sampling_numerator=Samples.numerator(expected_batch_size=REPORTS, dataset_size=REPORTS),
        noise_multiplier=5.0,
    )


def run_on_ray(times: int, show: Show) -> Outcome:
    """The same at a helper whose rounds a worker on a Ray cluster of this machine computes."""
    from tests.helper.executors.ray_machines import machines, until  # needs ray

    with tempfile.TemporaryDirectory() as folder, machines(Path(folder)) as made:
        made.add()
        workers = ("--ray", made.address, "--ray-worker-tls", str(made.certificates))
        fleet = DyingFleet(
            folder=Path(folder) / "fleet", helper_options=OPTIONS, helper_options_of=(workers, ())
        )

        def await_worker() -> None:
            """The helper's log of this life alone says that one has joined."""
            until(lambda: " joined\n" in fleet.life())

        with fleet:
            return run(fleet, times, show, await_helper=await_worker)


def main() -> None:
    """Run and print the one JSON object."""
    from tests.e2e import same_epoch  # which asks as this module does

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--cluster", action="store_true", help="at a helper with a worker on Ray")
    arguments = parser.parse_args()
    if arguments.cluster:
        with shown("the same round, clustered", arguments.times) as show:
            outcome = run_on_ray(arguments.times, show)
        print(json.dumps(asdict(outcome)))  # the run's output
        is_at_workers = outcome.kills_at_workers == outcome.rounds
        is_right = outcome.is_right and is_at_workers and outcome.sent == arguments.times
        raise SystemExit(0 if is_right else 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        DyingFleet(folder=Path(folder), helper_options=OPTIONS) as fleet,
        shown("the same round", arguments.times) as show,
    ):
        outcome = run(fleet, arguments.times, show)
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(folder=Path(folder), is_no_noise=True, helper_options=OPTIONS) as fleet,
    ):
        epochs = same_epoch.run(fleet)
    print(json.dumps({**asdict(outcome), "random_allocation": asdict(epochs)}))  # the run's output
    is_right = outcome.is_right and outcome.sent == arguments.times and epochs.is_right
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()

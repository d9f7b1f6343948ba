"""`make same-round`: one round, sent to a real helper 10,000 times by eight callers at once, while the helper
is killed again and again.

Each kill comes while calls are under way, the first ones before the round was ever answered: during its first
computation. A caller whose connection is lost asks again. There is noise, so that a second computation would
show. Then whole epochs of random allocation (`same_epoch`). Ends with one JSON object.

With `--cluster` the helper has a worker on Ray in each of its lives, from before the first call on, which is
lost with it. It ends after the round.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock
from typing import Final

from adserver.peers.client import HelperClient
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.errors import HelperUnavailable
from maskedlark.model import weights
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.samples import sampling_numerator
from maskedlark.reports.upload import Report, Sealer
from tests.builders import examples
from tests.chaos.uploads import Uploads
from tests.progress import Show, shown

KILLS: Final = 5
KILLS_AT_FIRST: Final = (0.002, 0.02)
"""Seconds after the first call of a life at which it ends, before there was an answer.

Of as many kills as there are numbers.
"""
REPORTS: Final = 100
FEATURES: Final = 4
OPTIONS: Final = ("--release-grid-ms", "0.5")
"""Of the helpers: the grid that answers leave on would be most of the time."""
_THREADS: Final = 8
_LOOK_S: Final = 0.002
_AWAY_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came back. Wanted: one distinct answer, and one round charged.

    Attributes:
        sent: How often the round was asked for and answered.
        kills: How often the helper was killed meanwhile.
        kills_before_an_answer: Of them, before anybody had an answer.
        kills_under_way: Of them, with calls under way.
        lost: Calls that died with the helper, and were made again.
        distinct_answers: By content.
        rounds_charged: By the helper's own count.
        seconds: Of the asking.
    """

    sent: int
    kills: int
    kills_before_an_answer: int
    kills_under_way: int
    lost: int
    distinct_answers: int
    rounds_charged: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether there is one answer and one charge, and every kill was one that could have broken that."""
        is_tried = self.kills == self.kills_under_way == KILLS and self.kills_before_an_answer > 0
        return is_tried and self.distinct_answers == self.rounds_charged == 1


@dataclass(kw_only=True)
class Asking:
    """One round, asked for by many threads.

    `helper` is the client of the helper's present life, and another one after each kill.
    """

    spec: JobSpec
    sent: bytes
    length: int
    left: int
    helper: HelperClient
    answers: Counter[bytes] = field(default_factory=Counter)
    lost: int = 0
    under_way: int = 0
    is_up: Event = field(default_factory=Event)
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
            is_wanted = self.left > 0 and not self.is_over
            self.left -= is_wanted
            self.under_way += is_wanted
        return is_wanted

    def _ask(self) -> bytes | None:
        helper = self.helper
        try:
            return helper.run_round(self.spec.job_id, 0, self.sent, self.length).encode()
        except HelperUnavailable:
            if helper is self.helper and self.is_up.is_set():
                time.sleep(_LOOK_S)  # killed a moment ago, and not known yet
            return None


def run(
    fleet: Fleet,
    times: int,
    show: Show = lambda _done, _note: None,
    await_helper: Callable[[], None] = lambda: None,
) -> Outcome:
    """Have one round answered `times` times, by one life of the helper more than there are kills.

    `await_helper` is called in each life before anybody asks.
    """
    task, dataset = sealed_dataset(fleet)
    path = fleet.folder / "again.onnx"
    fleet.run("adserver", "model", "create", str(path), "--layers", f"{FEATURES},1", "--seed", "5")
    model = parse(path.read_bytes(), num_features=FEATURES)
    spec, sent = (
        job_over(task, dataset, model),
        weights.encode([weights.quantise(values) for values in model.initial_values]),
    )
    address = (fleet.folder / "helper-0.address").read_text()
    began = time.monotonic()
    with ExitStack() as lives:

        def client() -> HelperClient:
            await_helper()
            return lives.enter_context(HelperClient(address, None, 30.0))

        asking = Asking(spec=spec, sent=sent, length=model.num_parameters, left=times, helper=client())
        asking.helper.start_job(spec, path.read_bytes())
        kills = _asked_and_killed(fleet, asking, client, times, show)
        charged = asking.helper.status().rounds_answered or 0
    return Outcome(
        sent=asking.answers.total(),
        kills=len(kills),
        kills_before_an_answer=sum(not kill.answered for kill in kills),
        kills_under_way=sum(kill.under_way > 0 for kill in kills),
        lost=asking.lost,
        distinct_answers=len(asking.answers),
        rounds_charged=charged,
        seconds=round(time.monotonic() - began, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What there was when the helper was killed: answers so far, and calls under way."""

    answered: int
    under_way: int


def _asked_and_killed(
    fleet: Fleet, asking: Asking, client: Callable[[], HelperClient], times: int, show: Show
) -> list[Kill]:
    """Let the callers ask until they have enough, and kill the helper meanwhile."""
    kills: list[Kill] = []
    with ThreadPoolExecutor(_THREADS) as threads:
        asking.is_up.set()
        callers = [threads.submit(asking.ask_on) for _ in range(_THREADS)]
        try:
            while (waited := wait(callers, _LOOK_S, FIRST_EXCEPTION)).not_done and not any(
                one.exception() for one in waited.done
            ):
                show(asking.answers.total(), f"{len(asking.answers)} distinct answers")
                if len(kills) < KILLS and _is_time(asking, len(kills), times):
                    kills.append(_killed(fleet, asking))
                    fleet.start_helper(0)
                    asking.helper = client()
                    asking.is_up.set()
        finally:
            asking.is_over = True
            asking.is_up.set()
        for one in callers:
            one.result()
    return kills


def _is_time(asking: Asking, kills: int, times: int) -> bool:
    """Whether the next kill is due.

    The first ones a moment after the first call, the others spread over the answers.
    """
    if not asking.under_way:
        return False
    if kills < len(KILLS_AT_FIRST):
        time.sleep(KILLS_AT_FIRST[kills])
        return True
    return asking.answers.total() >= times * (kills - len(KILLS_AT_FIRST) + 1) // (
        KILLS - len(KILLS_AT_FIRST) + 1
    )


def _killed(fleet: Fleet, asking: Asking) -> Kill:
    with asking.lock:
        kill = Kill(answered=asking.answers.total(), under_way=asking.under_way)
    fleet.kill(HELPERS[0])
    asking.is_up.clear()
    return kill


def sealed_dataset(fleet: Fleet) -> tuple[str, str]:
    """A task with noise and a dataset of it; both ids in hexadecimal."""
    task = make_task(fleet, "again")
    assert Uploads(fleet, task).send(new_reports(fleet, task, REPORTS, "of a dataset"))
    sealed = fleet.adserver_json("dataset", "seal", "--task", task)
    assert sealed["admitted"] == REPORTS
    return task, sealed["dataset_id"]


def make_task(fleet: Fleet, name: str) -> str:
    """A small task with noise; its id in hexadecimal."""
    return fleet.adserver(
        "task", "create", "--name", name, "--origin", "https://ads.example", "--classes", "2",
        "--num-features", str(FEATURES),
        "--min-batch-size", "50", "--epsilon", "8", "--collusion-epsilon", "16", "--clip-norm", "1",
    ).strip()  # fmt: skip


def new_reports(fleet: Fleet, task: str, count: int, seed: str) -> list[Report]:
    """Reports of a task, sealed and not sent."""
    sealer, randomness = Sealer(Uploads(fleet, task).bundle(), now=time.time()), seeded(0, seed)
    return [
        sealer.report(one, unix_s=time.time(), randomness=randomness)
        for one in examples(sealer.task, count, randomness)
    ]


def job_over(task: str, dataset: str, model: Model) -> JobSpec:
    """A job of two rounds, so that the first one's answer is kept."""
    return JobSpec(
        job_id=b"sent over, again",
        task_id=bytes.fromhex(task),
        dataset_id=bytes.fromhex(dataset),
        model_digest=model.digest,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=2,
        sampling_numerator=sampling_numerator(expected_batch_size=REPORTS, dataset_size=REPORTS),
        noise_multiplier=5.0,
    )


def run_on_ray(times: int, show: Show) -> Outcome:
    """The same at a helper whose rounds a worker on a Ray cluster of this machine computes."""
    from tests.helper.executors.ray_machines import machines, until  # needs ray

    with tempfile.TemporaryDirectory() as folder, machines(Path(folder)) as made:
        made.add()
        workers = ("--ray", made.address, "--ray-join-token", str(made.token_file))
        fleet = Fleet(folder=Path(folder) / "fleet", helper_options=OPTIONS, helper_options_of=(workers, ()))
        lives = 0

        def await_worker() -> None:
            nonlocal lives
            lives += 1
            until(lambda: fleet.log(HELPERS[0]).count(" joined\n") >= lives)

        with fleet:
            return run(fleet, times, show, await_worker)


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
        raise SystemExit(0 if outcome.is_right and outcome.sent == arguments.times else 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(folder=Path(folder), helper_options=OPTIONS) as fleet,
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

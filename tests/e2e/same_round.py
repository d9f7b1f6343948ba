"""`make same-round`: one round, sent to a real helper 10,000 times by eight callers at once, while the helper is killed again and again.

There is noise, so that a second computation would show. Ends with one JSON object.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from adserver.helper_client import HelperClient
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.job import JobSpec, sampling_numerator
from maskedlark.model import weights
from maskedlark.model.graph import Loss, Model
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.upload import Report, Sealer
from tests.builders import examples
from tests.chaos.uploads import Uploads
from tests.progress import Show, shown

RESTARTS: Final = 5
REPORTS: Final = 100
FEATURES: Final = 4
OPTIONS: Final = ("--release-grid-ms", "0.5")
"""Of the helpers: the grid that answers leave on would be most of the time."""
_THREADS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came back. Wanted: one distinct answer, and one round charged.

    Attributes:
        sent: How often the round was asked for and answered.
        restarts: How often the helper was killed meanwhile.
        distinct_answers: By content.
        rounds_charged: By the helper's own count.
        seconds: Of the asking.
    """

    sent: int
    restarts: int
    distinct_answers: int
    rounds_charged: int
    seconds: float


def run(fleet: Fleet, times: int, show: Show = lambda _done, _note: None) -> Outcome:
    """Send one round `times` times, in as many parts as there are lives of the helper."""
    task, dataset = sealed_dataset(fleet)
    path = fleet.folder / "again.onnx"
    fleet.run("adserver", "model", "create", str(path), "--layers", f"{FEATURES},1", "--seed", "5")
    model = parse(path.read_bytes(), num_features=FEATURES)
    spec, sent = job_over(task, dataset, model), weights.encode([weights.quantise(values) for values in model.initial_values])
    answers: Counter[bytes] = Counter()
    began = time.monotonic()
    address = (fleet.folder / "helper-0.address").read_text()
    with HelperClient(address, None, 30.0) as helper, ThreadPoolExecutor(_THREADS) as callers:
        helper.start_job(spec, path.read_bytes())

        def ask(_: int) -> bytes:
            return sha256(helper.run_round(spec.job_id, 0, sent, model.num_parameters).encode()).digest()

        for life in range(RESTARTS + 1):
            if life:
                fleet.kill(HELPERS[0])
                fleet.start_helper(0)
            answers.update(callers.map(ask, range(times * life // (RESTARTS + 1), times * (life + 1) // (RESTARTS + 1))))
            show(answers.total(), f"{len(answers)} distinct answers")
        charged = helper.status().rounds_answered
    seconds = round(time.monotonic() - began, 1)
    return Outcome(sent=answers.total(), restarts=RESTARTS, distinct_answers=len(answers), rounds_charged=charged, seconds=seconds)


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
        "task", "create", "--name", name, "--origin", "https://ads.example", "--classes", "2", "--num-features", str(FEATURES),
        "--min-batch-size", "50", "--epsilon", "8", "--collusion-epsilon", "64", "--clip-norm", "1",
    ).strip()  # fmt: skip


def new_reports(fleet: Fleet, task: str, count: int, seed: str) -> list[Report]:
    """Reports of a task, sealed and not sent."""
    sealer, randomness = Sealer(Uploads(fleet, task).bundle()), seeded(0, seed)
    return [sealer.report(one, unix_s=time.time(), randomness=randomness) for one in examples(sealer.task, count, randomness)]


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


def main() -> None:
    """Run and print the one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10_000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(folder=Path(folder), helper_options=OPTIONS) as fleet,
        shown("the same round", arguments.times) as show,
    ):
        outcome = run(fleet, arguments.times, show)
    print(json.dumps(asdict(outcome)))  # the run's output
    raise SystemExit(0 if outcome.distinct_answers == outcome.rounds_charged == 1 and outcome.sent == arguments.times else 1)


if __name__ == "__main__":
    main()

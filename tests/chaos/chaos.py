"""`make chaos`: two helpers and an ad server as real processes; every few seconds one of them is killed (SIGKILL) and started again,
while three jobs run and browsers upload without pause.

It shows that all jobs end once, with the same model to the bit; that no report is lost after the ad server acknowledged it; that no
helper charges a round twice; and that no job stands still for longer than two leases. Ends with one JSON object.
"""

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import httpx

from docs.tutorial.fleet import HELPERS, ORIGIN, Fleet
from maskedlark import canonical
from maskedlark.randomness import seeded
from maskedlark.rpc.wire import report_to_message
from maskedlark.task import TaskBundle
from maskedlark.upload import Report, Sealer
from protos import report_pb2
from tests.builders import examples

JOBS: Final = 3
BATCH: Final = 20
LEASE_S: Final = 6.0
PARTIES: Final = (*HELPERS, "adserver")
ROUNDS_PER_SECOND: Final = 1.0
_END_S: Final = 300.0
_PAUSE_S: Final = (1.5, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened. Wanted: jobs_ended_once 3 of 3, one model, and zeros.

    Attributes:
        jobs_ended_once: Jobs that are done, with each of their rounds taken once.
        distinct_models: Models that the jobs, all of the same plan, trained.
        reports_acknowledged: Reports that the ad server said to hold.
        reports_lost: Of these, those that it does not hold.
        double_charges: Rounds that a helper charged beyond the plan, or that only one helper charged, and reports used twice.
        stuck: Looks at which a job stood still with a lease that ran out more than another lease ago, the ad server being up.
        kills: Processes killed.
        seconds: How long it went on.
    """

    jobs_ended_once: int
    distinct_models: int
    reports_acknowledged: int
    reports_lost: int
    double_charges: int
    stuck: int
    kills: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether everything held, and something happened."""
        wrong = self.reports_lost + self.double_charges + self.stuck
        return self.jobs_ended_once == JOBS and self.distinct_models == 1 and not wrong and self.kills > 0 and self.reports_acknowledged > 0


@dataclass(kw_only=True)
class Uploads:
    """Browsers that upload for as long as the run lasts, and send a batch again until it is acknowledged."""

    bundle: TaskBundle
    fleet: Fleet
    acknowledged: set[bytes] = field(default_factory=set)
    _stop: Event = field(default_factory=Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = Thread(target=self._run, name="uploads")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        sealer, task = Sealer(self.bundle), self.bundle.task
        for number in count():
            randomness = seeded(number, "chaos")
            batch = [sealer.report(example, unix_s=time.time(), randomness=randomness) for example in examples(task, BATCH, randomness)]
            while not self._stop.is_set() and not self._send(batch):
                time.sleep(0.1)
            if self._stop.wait(0.05):
                return

    def _send(self, batch: list[Report]) -> bool:
        body = report_pb2.ReportBatch(reports=map(report_to_message, batch)).SerializeToString()
        try:
            answer = httpx.post(f"http://{self.fleet.http}/v1/reports/batch", content=body, timeout=10)
        except httpx.HTTPError:
            return False
        if answer.status_code != 200 or answer.json()["accepted"] + answer.json()["duplicates"] != BATCH:
            return False
        self.acknowledged.update(report.report_id for report in batch)
        return True


def run(seconds: float, folder: Path, seed: int) -> Outcome:
    """One run; the fleet's folder keeps everything that was written."""
    began = time.monotonic()
    rounds = max(5, int(seconds * ROUNDS_PER_SECOND))
    with Fleet(folder=folder, is_no_noise=True) as fleet:
        bundle = make_task(fleet)
        jobs = submit_jobs(fleet, bundle, rounds)
        uploads = Uploads(bundle=bundle, fleet=fleet)
        with uploads.running():
            kills, stuck = disturb(fleet, seconds, random.Random(seed))
        await_end(fleet)
        models = {exported(fleet, job) for job in jobs if state_of(fleet, job) == "done"}
        return Outcome(
            jobs_ended_once=sum(ended_once(fleet, job, rounds) for job in jobs),
            distinct_models=len(models),
            reports_acknowledged=len(uploads.acknowledged),
            reports_lost=len(uploads.acknowledged - stored_reports(fleet)),
            double_charges=double_charges(fleet, jobs, rounds),
            stuck=stuck,
            kills=kills,
            seconds=round(time.monotonic() - began, 1),
        )


def make_task(fleet: Fleet) -> TaskBundle:
    """A task whose dataset is sealed before anything goes wrong."""
    task = fleet.adserver(
        "task", "create", "--name", "chaos", "--origin", ORIGIN, "--classes", "2", "--default-label", "0", "--num-features", "30",
        "--min-batch-size", "50", "--no-noise", "--epsilon", "1", "--clip-norm", "1",
    ).strip()  # fmt: skip
    fleet.browsers("--task", f"http://{fleet.http}/v1/tasks/{task}", "--to", f"http://{fleet.http}", "--source", "wbcd", "--seed", "3")
    fleet.adserver_json("dataset", "seal", "--task", task)
    return canonical.decode(TaskBundle, httpx.get(f"http://{fleet.http}/v1/tasks/{task}").content)


def submit_jobs(fleet: Fleet, bundle: TaskBundle, rounds: int) -> list[str]:
    """Three jobs of one plan; their ids."""
    model = fleet.folder / "untrained.onnx"
    fleet.run("adserver", "model", "create", str(model), "--layers", "30,8,1", "--seed", "2")
    dataset = fleet.adserver_json("dataset", "list", options=False)[0]["dataset_id"]
    return [
        fleet.adserver_json(
            "job", "submit", "--task", bundle.task.task_id.hex(), "--dataset", dataset, "--model", str(model),
            "--loss", "binary_cross_entropy_with_logits", "--rounds", str(rounds), "--learning-rate", "0.1", options=False,
        )["job_id"]
        for _ in range(JOBS)
    ]  # fmt: skip


def disturb(fleet: Fleet, seconds: float, chance: random.Random) -> tuple[int, int]:
    """Kill and start again until the time is over; how many were killed, and how often a job was seen stuck."""
    kills = stuck = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(*_PAUSE_S))
        party = chance.choice(PARTIES)
        fleet.kill(party)
        kills += 1
        time.sleep(chance.uniform(0.0, 1.5))
        fleet.start_adserver() if party == "adserver" else fleet.start_helper(HELPERS.index(party))
        stuck += overdue(fleet)
    return kills, stuck


def overdue(fleet: Fleet) -> int:
    """Jobs whose lease ran out more than one lease ago, and that nobody took over although the ad server was up since."""
    log_age = time.time() - (fleet.folder / "adserver.addresses").stat().st_mtime
    query = "SELECT count(*) FROM jobs WHERE state IN ('running', 'waiting') AND lease_until_s < ?"
    return int(rows(fleet, "adserver", query, time.time() - LEASE_S)[0][0]) if log_age > LEASE_S else 0


def await_end(fleet: Fleet) -> None:
    """Until every job has stopped, or for as long as is bearable."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        states = {state for (state,) in rows(fleet, "adserver", "SELECT state FROM jobs")}
        if states <= {"done", "refused", "failed", "cancelled"}:
            return
        time.sleep(0.5)


def ended_once(fleet: Fleet, job: str, rounds: int) -> bool:
    """Whether a job is done, with each round in its history once."""
    history = [done for (done,) in rows(fleet, "adserver", "SELECT rounds_done FROM job_rounds WHERE job_id = ?", bytes.fromhex(job))]
    taken = [done for done in sorted(history) if done > 0]
    return state_of(fleet, job) == "done" and taken == list(range(1, rounds + 1))


def double_charges(fleet: Fleet, jobs: list[str], rounds: int) -> int:
    """Rounds charged beyond the plan or at one helper only, and reports used more than once."""
    wrong = 0
    for helper in HELPERS:
        for job in jobs:
            found = rows(fleet, helper, "SELECT rounds_answered FROM jobs WHERE job_id = ?", bytes.fromhex(job))
            charged = rows(fleet, helper, "SELECT count(*) FROM rounds WHERE job_id = ?", bytes.fromhex(job))
            wrong += abs(found[0][0] - rounds) + max(0, charged[0][0] - rounds)
        used, size = (rows(fleet, helper, query)[0][0] for query in ("SELECT count(*) FROM used_reports", "SELECT sum(size) FROM datasets"))
        wrong += abs(used - size)
    return wrong


def stored_reports(fleet: Fleet) -> set[bytes]:
    return {bytes(report_id) for (report_id,) in rows(fleet, "adserver", "SELECT report_id FROM reports")}


def state_of(fleet: Fleet, job: str) -> str:
    return str(rows(fleet, "adserver", "SELECT state FROM jobs WHERE job_id = ?", bytes.fromhex(job))[0][0])


def exported(fleet: Fleet, job: str) -> bytes:
    out = fleet.folder / f"{job}.onnx"
    fleet.adserver("model", "export", "--job", job, str(out), options=False)
    return out.read_bytes()


def rows(fleet: Fleet, party: str, query: str, *values: Any) -> list[Any]:
    """What a party's database says, read from outside."""
    [path] = fleet.data(party).glob("*.sqlite3")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(query, values).fetchall()


def main() -> None:
    """Run and print the one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(arguments.seconds, Path(folder), arguments.seed)
    print(json.dumps(asdict(outcome)))  # the benchmark's output
    raise SystemExit(0 if outcome.is_right else 1)


if __name__ == "__main__":
    main()

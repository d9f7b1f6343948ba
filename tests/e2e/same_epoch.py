"""Whole epochs of random allocation at two real helpers, one of which is killed before, in and after rounds.

Each of the people has a feature of their own and there is no noise, so every sum tells who was in it: which
coordinates are not zero. Two jobs run side by side. `make same-round` ends with this.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adserver.peers.client import HelperClient
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.errors import HelperUnavailable
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.report import Example
from maskedlark.reports.upload import Sealer
from tests.chaos.uploads import Uploads
from tests.e2e.same_round import job_over
from tests.fleet_commands import create_model, create_task, seal

PEOPLE = 200
"""So many that no round has fewer than the least floor, 20, but with a probability of 1e-7."""
STEPS = 4
EPOCHS = 2
JOBS = 2
_LOST_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How often each person was in each epoch of each job. Wanted: once, always.

    Attributes:
        epochs: Epochs of all jobs.
        kills: Of a helper, meanwhile.
        participations_least: The fewest rounds of an epoch that a person was in.
        participations_most: The most.
        distinct_epochs: Ways in which the people were spread over the rounds of an epoch.
    """

    epochs: int
    kills: int
    participations_least: int
    participations_most: int
    distinct_epochs: int

    @property
    def is_right(self) -> bool:
        """Whether everybody was in each epoch once, and each epoch has slots of its own."""
        once = self.participations_least == self.participations_most == 1
        return once and self.distinct_epochs == self.epochs and self.kills > 0


class Asker:
    """Asks both helpers for rounds, whatever becomes of one of them."""

    def __init__(self, fleet: Fleet, stack: ExitStack, sent: bytes, length: int) -> None:
        self.kills = 0
        self._fleet, self._stack, self._sent, self._length = fleet, stack, sent, length
        self.clients = [self._client(role) for role in (0, 1)]

    def round(self, spec: JobSpec, index: int, *, is_killed: bool) -> NDArray[np.int64]:
        """The sum of a round; a helper that is killed dies before it is asked, while or after, in turn."""
        when = index % 3 if is_killed else None
        with ThreadPoolExecutor(1) as thread:
            if when == 0:
                self._kill()
            asked = thread.submit(self._ask, 0, spec, index)
            if when == 1:
                self._kill()
            first = asked.result()
        if when == 2:
            self._kill()
            again = self._ask(0, spec, index)
            if first is not None and again != first:
                raise AssertionError("a round has two answers")
        shares = [self._answered(role, spec, index) for role in (0, 1)]
        return combine(shares[0], shares[1])

    def _answered(self, role: int, spec: JobSpec, index: int) -> AggregateShare:
        for _ in range(_LOST_TRIES):
            share = self._ask(role, spec, index)
            if share is not None:
                return AggregateShare.decode(share, self._length)
        raise TimeoutError("a helper does not answer")

    def _ask(self, role: int, spec: JobSpec, index: int) -> bytes | None:
        try:
            return self.clients[role].run_round(spec, index, self._sent, self._length).encode()
        except HelperUnavailable:
            return None

    def _kill(self) -> None:
        self._fleet.kill(HELPERS[0])
        self._fleet.start_helper(0)
        self.clients[0] = self._client(0)
        self.kills += 1

    def _client(self, role: int) -> HelperClient:
        address = (self._fleet.folder / f"{HELPERS[role]}.address").read_text()
        return self._stack.enter_context(HelperClient(address, None, 60.0))


def run(fleet: Fleet, *, kills: int = STEPS * EPOCHS) -> Outcome:
    """Two jobs of whole epochs, round by round; a helper is killed in the first `kills` of them."""
    task = create_task(
        fleet,
        "epochs",
        f"--classes 2 --num-features {PEOPLE} --min-batch-size 20 --no-noise --epsilon 1 --clip-norm 1",
    )
    uploads = Uploads(fleet, task)
    sealer, drawn = Sealer(uploads.bundle(), now=time.time()), seeded(0, "people of an epoch")
    people = [
        Example(features=np.where(np.arange(PEOPLE) == one, 255, 0).astype(np.uint8), label=1.0)
        for one in range(PEOPLE)
    ]
    assert uploads.send([sealer.report(one, unix_s=time.time(), randomness=drawn) for one in people])
    dataset = seal(fleet, task)["dataset_id"]
    path = create_model(fleet, fleet.folder / "epochs.onnx", (PEOPLE, 1), seed=5)
    model = parse(path.read_bytes(), num_features=PEOPLE)
    sent = weights.encode([weights.quantise(values) for values in model.initial_values])
    jobs = [
        replace(
            job_over(task, dataset, model),
            job_id=bytes([number]) * 16,
            rounds=STEPS * EPOCHS,
            noise_multiplier=0.0,
            epoch_steps=STEPS,
            sampling_numerator=2**32 // STEPS,
        )
        for number in range(JOBS)
    ]
    start = next(
        sum(one.size for one in model.parameters[:place])
        for place, parameter in enumerate(model.parameters)
        if parameter.size == PEOPLE
    )
    with ExitStack() as stack:
        asker = Asker(fleet, stack, sent, model.num_parameters)
        for spec in jobs:
            for client in asker.clients:
                client.start_job(spec, path.read_bytes())
        taking_part = np.array(
            [
                [
                    asker.round(spec, index, is_killed=index < kills and spec is jobs[index % JOBS])[
                        start : start + PEOPLE
                    ]
                    != 0
                    for spec in jobs
                ]
                for index in range(STEPS * EPOCHS)
            ]
        )
    # (epochs, steps, jobs, people)
    spread = taking_part.reshape(EPOCHS, STEPS, JOBS, PEOPLE)
    counts = spread.sum(axis=1)
    return Outcome(
        epochs=EPOCHS * JOBS,
        kills=asker.kills,
        participations_least=int(counts.min()),
        participations_most=int(counts.max()),
        distinct_epochs=len({spread[e, :, j].tobytes() for e in range(EPOCHS) for j in range(JOBS)}),
    )

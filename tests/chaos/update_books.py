"""What the parties' databases say of a federated job, and what they must say.

Which updates count is read from the helpers; the model that they give is computed here, in the clear.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.federated_plan import FederatedPlan
from adserver.store.database import default_url
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobStore
from browser_sim.devices.device_data import Holdings
from docs.tutorial.fleet import HELPERS
from maskedlark.canonical import decode
from maskedlark.errors import JobRefused
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.strategy import Round, ServerState, Strategy, device_stream
from maskedlark.randomness import seeded
from maskedlark.releases.instructions import read_instructions
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.update import UpdateRound, UpdateSpec, form_of
from maskedlark.runtime.database import open_database
from tests.chaos.books import Books
from tests.chaos.update_devices import DEVICES, SEED, DeviceProcess, report_id

_ALIKE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBooks:
    """One federated job in the databases of a fleet's three parties.

    Attributes:
        books: The databases.
        task: Its id in hexadecimal.
        job: Its id in hexadecimal.
        rounds: That it has.
    """

    books: Books
    task: str
    job: str
    rounds: int

    def plan(self) -> FederatedPlan:
        """The job as submitted."""
        engine = open_database(default_url(self.books.fleet.data("adserver")))
        try:
            plan = JobStore(engine, lambda: 0.0).get(bytes.fromhex(self.job)).plan
        finally:
            engine.dispose()
        assert isinstance(plan, FederatedPlan)
        return plan

    def specs(self) -> list[UpdateSpec]:
        """The releases that the ad server may have asked for by now, by round."""
        found = self.books.rows(
            "adserver",
            "SELECT round, dataset_id FROM update_rounds WHERE job_id = ? AND dataset_id IS NOT NULL "
            "ORDER BY round_index",
            bytes.fromhex(self.job),
        )
        return [UpdateSpec(dataset_id=name, round=decode(UpdateRound, one)) for one, name in found]

    def answers(self, helper: str) -> list[tuple[UpdateSpec, bytes]]:
        """What a helper's ledger has charged and answered of the task, by round."""
        found = self.books.rows(
            helper,
            "SELECT spec, answer FROM queries JOIN datasets USING (task_id, dataset_id) WHERE task_id = ?",
            bytes.fromhex(self.task),
        )
        read = [(decode(UpdateSpec, spec), bytes(answer)) for spec, answer in found]
        return sorted(read, key=lambda one: one[0].round.round_index)

    def wrong_charges(self) -> int:
        """Rounds that a helper charged twice, not at all, or for other updates than the ad server chose."""
        wanted = self.specs()
        wrong = abs(len(wanted) - self.rounds)
        for helper in HELPERS:
            charged = [spec for spec, _ in self.answers(helper)]
            wrong += sum(charged.count(spec) != 1 for spec in wanted)
            wrong += sum(spec not in wanted for spec in charged)
        return wrong

    def used(self, helper: str) -> set[bytes]:
        """Ids of the updates that count at a helper."""
        query = "SELECT report_id FROM used_reports WHERE task_id = ?"
        return {bytes(one) for (one,) in self.books.rows(helper, query, bytes.fromhex(self.task))}

    def misplaced(self) -> int:
        """Updates that count at one helper only, are of no device, or are not in their own round's dataset
        alone.
        """
        first, second = (self.used(helper) for helper in HELPERS)
        known = {report_id(index, device) for index in range(self.rounds) for device in range(DEVICES)}
        wrong = len(first ^ second) + len(first - known)
        for helper in HELPERS:
            sizes = dict(self.books.rows(helper, "SELECT dataset_id, size FROM datasets"))
            for spec, _ in self.answers(helper):
                wrong += abs(sizes[spec.dataset_id] - len(self._of_round(spec.round.round_index)))
        return wrong

    def lost(self, acknowledged: list[tuple[int, int]]) -> int:
        """Updates that a device knows to be acknowledged, and that do not count at both helpers."""
        counted = self.used(HELPERS[0]) & self.used(HELPERS[1])
        return sum(report_id(index, device) not in counted for index, device in acknowledged)

    def has_the_model(self, holdings: Holdings, *, is_noisy: bool) -> bool:
        """Whether the ad server's state is that of the sums in the helpers' ledgers, to the bit.

        And without noise, whether each sum is that of the updates in the clear.
        """
        plan = self.plan()
        strategy, model = read_instructions(plan.job)
        assert isinstance(model, DenseModel)
        length = form_of(plan.task).length
        first, second = (
            [AggregateShare.decode(answer, length) for _, answer in self.answers(helper)]
            for helper in HELPERS
        )
        state: ServerState = strategy.start(model.initial(seeded(plan.seed, "first weights")))
        while (asked := strategy.next_round(state)) is not None:
            index = state.rounds_done
            if index >= min(len(first), len(second)):
                return False
            try:
                total = combine(first[index], second[index])
            except JobRefused:
                return False
            if not is_noisy and not np.array_equal(
                total, self._in_the_clear(strategy, model, asked, index, holdings)
            ):
                return False
            state = strategy.step(state, asked, total)
        folder = JobFolder(self.books.fleet.data("adserver"), bytes.fromhex(self.job))
        stored = folder.checkpoint()  # with the weights that did best on the panel, which the state has not
        return stored is not None and ServerState.decode(stored).encode() == state.encode()

    def passed_budgets(self) -> int:
        """Budgets of the task that are overspent, as each helper says, or are not charged as the other's."""
        said = [self._budgets(helper) for helper in HELPERS]
        over: int = sum(
            spent is not None and spent > budget * (1 + _ALIKE) for one in said for spent, budget in one
        )
        return over + (said[0] != said[1])

    def _budgets(self, helper: str) -> list[tuple[Any, Any]]:
        """Spent and allowed, against each adversary, by `lark-helper budget`; spent is None without noise."""
        fleet = self.books.fleet
        told = json.loads(fleet.run("lark-helper", "budget", "--data", str(fleet.data(helper)), "--json"))
        mine = [one for one in told if one["task_id"] == self.task]
        return [(one[who]["spent"], one[who]["budget"]) for one in mine for who in ("ad_server", "colluding")]

    def _of_round(self, index: int) -> list[int]:
        used = self.used(HELPERS[0])
        return [device for device in range(DEVICES) if report_id(index, device) in used]

    def _in_the_clear(
        self, strategy: Strategy, model: DenseModel, asked: Round, index: int, holdings: Holdings
    ) -> NDArray[np.int64]:
        total = np.zeros(form_of(self.plan().task).length, np.int64)
        for device in self._of_round(index):
            stream = device_stream(SEED, index, device)
            if toss(asked.terms.sampling_rate, strategy.cover_rate, stream) is Part.UPDATE:
                total += strategy.device_vectors(model, asked, [holdings.examples(device)], [stream])[0]
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A task with a federated job and its devices."""

    books: UpdateBooks
    devices: DeviceProcess
    is_noisy: bool

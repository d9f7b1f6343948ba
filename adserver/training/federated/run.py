"""One federated job: open a round for devices, seal what they sent, have both helpers sum it, step.

Round by round.

    1. content of round r from checkpoint r        the same bytes however often round r is opened
    2. devices answer until the window is over     each update is stored once; later ones are refused as late
    3. both helpers prepare, then commit           what was chosen is durable before either commits
    4. both helpers release the sum                each stores its answer before it sends it, and charges once
    5. compare, add, step; figures and checkpoint r + 1

A process that dies anywhere goes on with the same round, and ends in the same bits.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.peers.pair import HelperPair
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import Stop
from adserver.records.round_figures import RoundFigures
from adserver.store.database import Clock
from adserver.store.job_files import JobFiles
from adserver.store.leases import JobLeases
from adserver.store.rounds import DeviceRound, DeviceRoundState, RoundStore
from adserver.store.schema import HANDLE_BYTES
from adserver.training.curves import CurveWriter
from adserver.training.eval_set import read_eval_set
from adserver.training.federated.model import first_parameters, scores
from adserver.training.job_outcome import FEW_DEVICES
from adserver.training.trainer import BestWeights
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.federated.strategy import Round, ServerState
from maskedlark.frozen import frozen
from maskedlark.numbers.lengths import l2_norm
from maskedlark.randomness import Randomness
from maskedlark.releases.instructions import read_instructions, update_round
from maskedlark.releases.release import combine
from maskedlark.releases.update import UpdateRound, UpdateSpec, form_of
from maskedlark.reports.dataset import AdmittedSet, canonical_order, dataset_id
from maskedlark.terminal.plural import plural

_POLL_S: Final = 0.05
# Past its window a round is given so long before the job says that it waits: devices are often a little late
_LATE_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


@frozen
class FederatedRun:
    """One worker's run of one federated job, from its checkpoint on.

    Attributes:
        plan: The job.
        folder: Its files.
        rounds: Where devices' updates are.
        pair: Both helpers.
        leases: Where figures are recorded.
        history: The figures so far.
        clock: Unix seconds.
        randomness: Draws handles.
    """

    plan: FederatedPlan
    folder: JobFiles
    rounds: RoundStore
    pair: HelperPair
    leases: JobLeases
    history: tuple[RoundFigures, ...]
    clock: Clock
    randomness: Randomness

    def to_the_end(self) -> None:
        """Run every round that is left.

        Raises:
            HelperUnavailable: a helper stayed away for longer than the backoff allows.
            JobRefused: a helper refused (BUDGET_EXHAUSTED: the task's budget is spent), the helpers disagree,
                or (CANCELLED) the job is to be let go of.
            InvalidModel(DIVERGED): training diverged.
        """
        strategy, _ = read_instructions(self.plan.job)
        stored = self.folder.checkpoint()
        state = self._first_state() if stored is None else ServerState.decode(stored)
        best = None if stored is None else BestWeights.decode(stored)
        history = tuple(one for one in self.history if one.rounds_done <= state.rounds_done)
        evaluate = self._evaluator()
        with CurveWriter.open(self.folder.path, history) as curves:
            # A run that died after its checkpoint has left the updates of a round that is answered.
            self.rounds.release_before(self.plan.job.job_id, state.rounds_done)
            if not history:
                self._keep(evaluate(RoundFigures(rounds_done=0, finished_at_s=self.clock()), state), curves)
            while (asked := strategy.next_round(state)) is not None:
                before = state.optimizer.masters
                state = strategy.step(state, asked, self._sum_round(asked))
                figures = RoundFigures(
                    rounds_done=state.rounds_done,
                    finished_at_s=self.clock(),
                    gradient_norm=l2_norm(state.optimizer.masters - before),
                )
                is_evaluated = self.plan.is_evaluated(state.rounds_done)
                figures = evaluate(figures, state) if is_evaluated else figures
                if (loss := figures.choosing_loss) is not None:
                    masters = (state.parameters,)
                    best = BestWeights.after(best, loss, rounds_done=state.rounds_done, masters=masters)
                # In this order: a round whose checkpoint is missing is run again, and its figures replaced.
                self._keep(figures, curves)
                encoded = state.encode() if best is None else best.added_to(state.encode())
                self.folder.write_checkpoint(encoded, rounds_done=state.rounds_done)
                self.rounds.release_before(self.plan.job.job_id, state.rounds_done)

    def _first_state(self) -> ServerState:
        strategy, _ = read_instructions(self.plan.job)
        return strategy.start(first_parameters(self.plan, self.folder.model()))

    def _sum_round(self, asked: Round) -> NDArray[np.int64]:
        """Return the noisy sum of one round, continuing what an earlier run has done of it."""
        one = update_round(self.plan.job, asked)
        sealed = None
        while sealed is None:
            sealed = self._read_sealed(self._close_round(one, asked))
            if sealed is None:
                _LOG.warning("no update of round %d was admitted: starting the round again", one.round_index)
                self.rounds.begin_again(one.round_id, now_s=self.clock())
        chosen, of_dataset = sealed
        spec = UpdateSpec(dataset_id=of_dataset, round=one)
        length = form_of(self.plan.task).length
        first, second = self.pair.ask(
            lambda _, helper: helper.run_query(spec, b"", length, cancelled=self.pair.interrupted)
        )
        total = combine(first.share, second.share)
        # Refuses a sum that no honest updates have; the strategy reads it again when it steps.
        one.read_sum(self.plan.task, total, records=int(chosen.sum()))
        return total

    def _close_round(self, one: UpdateRound, asked: Round) -> DeviceRound:
        """Return a round whose window is over, with the updates that devices sent for it."""
        stored = self.rounds.open(one, asked.encode(), now_s=self.clock())
        if stored.round != one:
            raise JobRefused(
                JobReason.ROUND_CHANGED, "a round with this index was already opened with other weights"
            )
        if stored.state is not DeviceRoundState.OPEN:
            return stored
        self._await_devices(stored)
        most = self.plan.task.max_dataset_size
        self.rounds.close(one.round_id, self.randomness(HANDLE_BYTES), most=most)
        # Read again, for another worker may have closed it first, under its own handle.
        return self.rounds.open(one, asked.encode(), now_s=self.clock())

    def _await_devices(self, stored: DeviceRound) -> None:
        """Wait until all devices have answered, or the window is over and enough have.

        A job says that it waits while too few have long after the window.
        """
        strategy, _ = read_instructions(self.plan.job)
        job_id, is_waiting = self.plan.job.job_id, False
        while True:
            received = self.rounds.count(stored.round.round_id)
            late_s = self.clock() - stored.opened_at - self.plan.window_s
            # More than a dataset holds would be cut off, so there is nothing to wait for.
            most = min(strategy.devices, self.plan.task.max_dataset_size)
            if received >= most or (late_s >= 0 and received >= self.plan.least_devices):
                if is_waiting:
                    self.leases.go_on(job_id)
                return
            if late_s > _LATE_S and not is_waiting:
                self.leases.wait(job_id, self._too_few(stored))
                is_waiting = True
            if self.pair.interrupted.wait(_POLL_S):
                raise JobRefused(JobReason.CANCELLED, "interrupted while devices answered")

    def _too_few(self, stored: DeviceRound) -> Stop:
        least = plural(self.plan.least_devices, "device")
        return Stop(
            reason=FEW_DEVICES,
            cause=f"fewer than {least} answered round {stored.round.round_index + 1} of "
            f"{self.plan.job.rounds} within {self.plan.window_s:g} s: it stays open until so many have",
        )

    def _read_sealed(self, stored: DeviceRound) -> tuple[NDArray[np.bool_], bytes] | None:
        """Return what both helpers hold of the round: which updates, and the dataset's id.

        None if they admit no update: forged ones must not end a job.
        """
        chosen, of_dataset = stored.chosen, stored.dataset_id
        if chosen is None or of_dataset is None:
            admitted = self.pair.ask(partial(self._prepare, stored))
            ids = self.rounds.report_ids(stored.round.round_id)
            if any(len(one.is_admitted) != len(ids) for one in admitted):
                raise JobRefused(
                    JobReason.CANCELLED, "another worker continued the round after this worker lost its lease"
                )
            chosen = admitted[0].intersect(admitted[1])
            if not chosen.any():
                return None
            ids = ids[chosen]
            order = canonical_order(ids)
            of_dataset = dataset_id(self.plan.task.task_id, ids[order], admitted[0].view_tags[chosen][order])
            self.rounds.choose(stored.round.round_id, chosen, of_dataset)
        self.pair.ask(partial(self._commit, stored, chosen, of_dataset))
        return chosen, of_dataset

    def _prepare(self, stored: DeviceRound, role: int, helper: Any) -> AdmittedSet:
        round_id = stored.round.round_id
        share_bytes = form_of(self.plan.task).share_length(role)
        admitted: AdmittedSet = helper.prepare_dataset(
            self.plan.task.task_id,
            stored.handle or b"",
            self.rounds.share_pages(round_id, role, share_bytes),
            num_reports=self.rounds.count(round_id),
            cancelled=self.pair.interrupted,
            update_round=encode(stored.round),
        )
        return admitted

    def _commit(
        self, stored: DeviceRound, chosen: NDArray[np.bool_], of_dataset: bytes, role: int, helper: Any
    ) -> None:
        """Commit at one helper; if it has forgotten the preparation (it was restarted), prepare again."""
        commit = partial(
            helper.commit_dataset, self.plan.task.task_id, stored.handle or b"", chosen, of_dataset
        )
        try:
            commit()
        except JobRefused as refusal:
            if refusal.reason is not JobReason.UNKNOWN_DATASET:
                raise
            self._prepare(stored, role, helper)
            commit()

    def _keep(self, figures: RoundFigures, curves: CurveWriter) -> None:
        self.leases.record(self.plan.job.job_id, figures)
        curves.append(figures)

    def _evaluator(self) -> Callable[[RoundFigures, ServerState], RoundFigures]:
        """Return a function that adds an evaluation to figures, if the job has an evaluation set."""
        stored = self.folder.eval_set()
        if stored is None:
            return lambda figures, _: figures
        held, file = read_eval_set(stored), self.folder.model()

        def evaluate(figures: RoundFigures, state: ServerState) -> RoundFigures:
            return scores(self.plan, file, state.parameters, held).added_to(figures)

        return evaluate

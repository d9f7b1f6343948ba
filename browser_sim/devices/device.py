"""One device in one round: check what is asked, flip the coin, train, clip, round, seal and store; then send.

    asked = DeviceRequest.read(body, task)            # refuses what is not a round of the task and its job
    answer = device.answer(asked, unix_s=...)         # at most one of each (task, job, round), ever

The upload's time is fixed before the coin is flipped, and the stored bytes are the ones that are sent: a
device's behaviour does not show whether it was drawn.
"""

import logging
from collections.abc import Callable
from dataclasses import field
from typing import Final

import numpy as np

from browser_sim.devices.answers import AnswerStore, DeviceAnswer
from browser_sim.devices.trainers import local_model
from browser_sim.kinds import TrainerKind
from maskedlark.canonical import decode
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.federated.local_training import Examples, LocalModel
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness
from maskedlark.releases.instructions import check_fits, read_instructions, update_round
from maskedlark.releases.update import UpdateRound
from maskedlark.reports.task import Task
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.reports.updates import UpdateVector
from maskedlark.rpc.wire import encode_report

_LENGTH_BYTES: Final = 4
_LOG: Final = logging.getLogger(__name__)


@frozen
class DeviceRequest:
    """A round as a device has checked it.

    Attributes:
        round: What its sealed report binds.
        content: The weights and terms.
        strategy: The job's.
        model: The job's, ready to be trained.
    """

    round: UpdateRound
    content: Round = field(repr=False)
    strategy: Strategy
    model: LocalModel

    @classmethod
    def read(cls, body: bytes, task: Task, trainer: TrainerKind = TrainerKind.NUMPY) -> "DeviceRequest":
        """Parse and check what the ad server asks. Called by a device.

        Args:
            body: From the ad server.
            task: The task.
            trainer: What trains on the device.

        Guarantees: the round's id binds the weights and terms that the device trains with, and the terms are
            those of the job that helpers charge.

        Raises:
            InvalidTask, InvalidModel: the bytes are no round, or the round is not one of the task and its
                job; or the device cannot train the job's model.
        """
        # A length that is too long needs no check: the bytes that are left are not canonical.
        end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
        one = decode(UpdateRound, body[_LENGTH_BYTES:end])
        if one.job.task_id != task.task_id:
            raise InvalidTask("the round belongs to another task")
        strategy, model = read_instructions(one.job)
        # Helpers check the same: a device does not take a round on the ad server's word.
        check_fits(task, strategy, model)
        content = Round.decode(body[end:], model.size)
        if update_round(one.job, content) != one:
            raise InvalidTask("the round's digest does not match the weights or terms that arrived with it")
        # The digest binds what the ad server wrote; helpers charge by the phase, so the two must be equal.
        phase, terms = one.job.phase(one.round_index), content.terms
        if (terms.sampling_rate, terms.noise_multiplier) != (phase.sampling_rate, phase.noise_multiplier):
            raise InvalidTask("the round's sampling rate or noise differs from what the helpers charge")
        if (
            terms.bound != strategy.bound.at(terms.bound.clip_norm)
            or terms.bound.clip_norm > strategy.bound.clip_norm
        ):
            raise InvalidTask("the round's clip bound is not one that the strategy allows")
        return cls(round=one, content=content, strategy=strategy, model=local_model(model, trainer))


@frozen
class Device:
    """One person's device.

    Attributes:
        number: Its number within the simulation.
        examples: What it holds; they never leave.
        sealer: Of the task.
        answers: Where its answers are.
        cap: The most rounds that it answers; None for no cap.
        training: Gives the stream of a round that the coin and the batches are drawn from.
        sealing: Gives the stream of a round that the report's id and shares are drawn from.
    """

    number: int
    examples: Examples = field(repr=False)
    sealer: UpdateSealer
    answers: AnswerStore
    cap: int | None
    training: Callable[[int, int], Randomness]
    sealing: Callable[[int, int], Randomness]

    def answer(self, asked: DeviceRequest, *, unix_s: float, is_ready: bool = True) -> DeviceAnswer:
        """Answer a round: return the stored answer, or a new one that is stored first.

        Args:
            asked: The round.
            unix_s: When it will be uploaded: fixed before the coin is flipped.
            is_ready: Whether the device can train now; one that cannot sends cover if it is drawn.

        Raises:
            ReportRejected(ROUND_CHANGED): it has answered other content of this round; it answers once.
            ReportRejected(CAP_REACHED): it has answered as many rounds as it may.
        """
        one = asked.round
        stored = self.answers.get(self.number, one)
        if stored is not None:
            # One coin for each index of a job: other content of the same round must not get a second one.
            if stored.round_id != one.round_id:
                raise ReportRejected(
                    ReportReason.ROUND_CHANGED,
                    "the device has already answered this round with other weights or terms",
                )
            return stored
        if self.cap is not None and self.answers.count_answered(self.number) >= self.cap:
            raise ReportRejected(
                ReportReason.CAP_REACHED, f"the device has answered {self.cap} rounds, its limit"
            )
        return self.answers.put(self.number, one, self._seal(asked, unix_s, is_ready=is_ready))

    def _seal(self, asked: DeviceRequest, unix_s: float, *, is_ready: bool) -> bytes | None:
        """Seal the report of this round, by a new coin; None for a device that stays silent."""
        one, strategy = asked.round, asked.strategy
        training = self.training(one.round_index, self.number)
        # The coin is the first of this stream, as in a simulation of the same seed.
        part = toss(asked.content.terms.sampling_rate, strategy.cover_rate, training)
        if part is Part.SILENT:
            return None
        # Cover is sealed as updates are, so that neither its bytes nor its length tells them apart.
        vector = self.sealer.form.zeros()
        if part is Part.UPDATE and is_ready and len(self.examples):
            vector = self._update(asked, training)
        report = self.sealer.report(
            one.round_id,
            one.clip(self.sealer.task),
            vector,
            unix_s=unix_s,
            randomness=self.sealing(one.round_index, self.number),
        )
        return encode_report(report)

    def _update(self, asked: DeviceRequest, training: Randomness) -> UpdateVector:
        """Return the trained update, or cover where training gave nothing that may be sent.

        A device that fell silent because its training failed would show that it was drawn, and weights on
        which training fails are the ad server's to choose.
        """
        form, clip = self.sealer.form, asked.round.clip(self.sealer.task)
        try:
            with np.errstate(all="ignore"):
                vectors = asked.strategy.device_vectors(
                    asked.model, asked.content, [self.examples], [training]
                )
            vector: UpdateVector = vectors[0]
            # Checked here, because an update that a helper dropped would show that the device was drawn.
            form.check_vector(clip, vector)
        except Exception as error:  # noqa: BLE001  whatever it was, it must not show
            _LOG.debug("training failed, so the device sends cover: %s", type(error).__name__)
            return form.zeros()
        return vector

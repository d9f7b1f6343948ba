"""A fleet of devices, for as long as their task has rounds.

Fetch, answer, send; and what networks and people do to them.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from browser_sim.delivery import MEDIA_TYPE
from browser_sim.devices.answers import AnswerStore, DeviceAnswer, Outcome
from browser_sim.devices.device import Device, DeviceRequest
from browser_sim.devices.device_data import Holdings
from browser_sim.devices.http_client import HttpClient
from browser_sim.draws import Draws
from browser_sim.endpoint import Protection
from browser_sim.kinds import TrainerKind
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.federated.strategy import device_stream
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness, uniform
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.terminal.plural import plural

MAX_ROUND_BYTES: Final = 1 << 20
_POLL_S: Final = 0.1


@frozen
class Churn:
    """The probabilities of events that befall a device in a round, each independent of the others.

    Attributes:
        drop_out: Stores its answer and goes away before it sends; it comes back, restarted, in the next
            round.
        late: Sends when the round is over.
        twice: Sends its report a second time.
        not_ready: Cannot train now: it sends cover if it is drawn.
    """

    drop_out: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    not_ready: float = 0.0


@dataclass(kw_only=True)
class Told:
    """What became of a fleet's answers.

    Attributes:
        devices: That gave their consent.
        examples: That these devices hold.
        rounds: That they saw.
        outcomes: Of answers, by name.
        reasons: Of refusals, by `ReportReason`: the ad server's, and a device's own to take part.
        silent: Answers that were no upload.
    """

    devices: int = 0
    examples: int = 0
    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    silent: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the attributes as JSON."""
        return dict(vars(self))

    @property
    def sentence(self) -> str:
        """The same for people."""
        if not self.rounds:
            return (
                f"{plural(self.devices, 'device')} saw no round: `adserver job list` says what jobs wait for"
            )
        answers = _listed(self.outcomes) or "no answers"
        why = f" ({_listed(self.reasons)})" if self.reasons else ""
        return f"{plural(self.devices, 'device')} saw {plural(self.rounds, 'round')}: {answers}{why}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())


@frozen
class FleetSettings:
    """How devices behave.

    Attributes:
        bundle: The task, verified.
        site: The ad server's HTTP address.
        protection: How it is reached.
        holdings: What devices hold.
        consent: The share of people who take part.
        cap: The most rounds that a device answers.
        churn: What happens to them.
        seed: Replays coins, batches and churn, as a simulation of the same seed does; None: the system's
            randomness.
        trainer: What trains on a device.
        rounds: Stop after so many rounds; None: go on.
        idle_s: Stop once there was no round for so long.
    """

    bundle: TaskBundle
    site: str
    protection: Protection
    holdings: Holdings
    consent: float = 1.0
    cap: int | None = None
    churn: Churn = Churn()
    seed: int | None = None
    trainer: TrainerKind = TrainerKind.NUMPY
    rounds: int | None = None
    idle_s: float = 30.0


class _DeviceFleet:
    """Devices that answer one task's rounds. Use it in a `with`."""

    def __init__(
        self,
        settings: FleetSettings,
        answers: AnswerStore,
        client: httpx.Client,
        *,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._answers = answers
        self._clock = clock
        self._pause = pause
        self._site = HttpClient(client, settings.site, pause)
        self._round_path = f"/v1/tasks/{settings.bundle.task.task_id.hex()}/round"
        self._draws = Draws(seed=settings.seed)
        self._late: list[tuple[Device, DeviceRequest]] = []
        sealer = UpdateSealer(settings.bundle, now=clock())
        consenting = (
            uniform(len(settings.holdings.population), self._draws.stream("consent")) < settings.consent
        )
        self._devices = [
            Device(
                number=number,
                examples=settings.holdings.examples(number),
                sealer=sealer,
                answers=answers,
                cap=settings.cap,
                training=self._training,
                sealing=self._sealing,
            )
            for number, is_in in enumerate(consenting.tolist())
            if is_in
        ]
        self.told = Told(
            devices=len(self._devices),
            examples=sum(len(one.examples) for one in self._devices),
        )

    def run(self, on_round: Callable[[int], None] = lambda _: None) -> Told:
        """Answer rounds until there are no more.

        Raises:
            InvalidTask, InvalidModel: the ad server asks what is no round of the task and its job, or
                devices cannot train the job's model.
            HelperUnavailable: the ad server does not answer.
        """
        seen: bytes | None = None
        waited_s = 0.0
        while waited_s < self._settings.idle_s:
            body = self._site.fetch(self._round_path, limit=MAX_ROUND_BYTES)
            asked = body and DeviceRequest.read(body, self._settings.bundle.task, self._settings.trainer)
            if not asked or asked.round.round_id == seen:
                self._pause(_POLL_S)
                # Pauses are counted and not the clock: a long training does not use up the patience.
                waited_s += _POLL_S
                continue
            # A new round has begun: devices that went away come back, and send for the one before.
            if seen is not None:
                self._send_late()
            seen, waited_s = asked.round.round_id, 0.0
            self.told.rounds += 1
            self._answer_all(asked)
            on_round(asked.round.round_index)
            if self.told.rounds == self._settings.rounds:
                break
        self._send_late()
        return self.told

    def _answer_all(self, asked: DeviceRequest) -> None:
        """Have all devices answer before the first one sends.

        Its time does not show whether it trained.
        """
        due: list[tuple[Device, int]] = []
        stream = self._draws.stream(f"churn {asked.round.round_index} {asked.round.job.job_id.hex()}")
        churn = self._settings.churn
        for device in self._devices:
            # Four for each device, whatever comes of them: so none changes the luck of those after it.
            drops, lates, twice, unready = uniform(4, stream).tolist()
            try:
                answer = device.answer(asked, unix_s=self._clock(), is_ready=unready >= churn.not_ready)
            except ReportRejected as refusal:
                self.told.reasons[refusal.reason.value] += 1
                continue
            if answer.outcome is not Outcome.STORED:
                continue
            if answer.report is None:
                self.told.silent += 1
                # Nothing is sent and nothing is waited for: silence is an answer.
                self._answers.mark(device.number, asked.round, Outcome.ANSWERED)
            elif drops < churn.drop_out or lates < churn.late:
                self._late.append((device, asked))
            else:
                due.append((device, 2 if twice < churn.twice else 1))
        for device, times in due:
            self._send_stored(device, asked, times=times)

    def _send_late(self) -> None:
        """Send the updates of devices that went away.

        They send their stored updates too late, and are refused.
        """
        waiting, self._late = self._late, []
        for device, asked in waiting:
            self._send_stored(device, asked, times=1)

    def _send_stored(self, device: Device, asked: DeviceRequest, *, times: int) -> None:
        """Send what a device has stored for a round, unless that is done."""
        answer = self._answers.get(device.number, asked.round)
        if answer is not None and answer.outcome is Outcome.STORED:
            self._send(device, asked, answer, times=times)

    def _send(self, device: Device, asked: DeviceRequest, answer: DeviceAnswer, *, times: int) -> None:
        outcome = Outcome.REFUSED
        for _ in range(times):
            reply = self._site.send("/v1/reports", answer.report or b"", MEDIA_TYPE)
            if reply.is_taken:
                outcome = Outcome.ANSWERED
                self.told.duplicates += reply.is_duplicate
            elif outcome is not Outcome.ANSWERED:  # the round may end between a report and its copy
                self.told.reasons[reply.reason] += 1
                outcome = Outcome.LATE if reply.reason == ReportReason.ROUND_OVER.value else Outcome.REFUSED
        self.told.outcomes[outcome.value] += 1
        self._answers.mark(device.number, asked.round, outcome)

    def _training(self, round_index: int, device: int) -> Randomness:
        seed = self._settings.seed
        return system_randomness if seed is None else device_stream(seed, round_index, device)

    def _sealing(self, round_index: int, device: int) -> Randomness:
        if self._settings.seed is None:
            return system_randomness
        return self._draws.stream(f"sealing {round_index} {device}")


def run_devices(
    settings: FleetSettings, answers: AnswerStore, on_round: Callable[[int], None] = lambda _: None
) -> Told:
    """Connect and run a fleet to its end; raises as `_DeviceFleet.run`."""
    with settings.protection.http_client(settings.site) as client:
        return _DeviceFleet(settings, answers, client).run(on_round)

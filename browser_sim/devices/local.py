"""Devices of jobs without helpers: fetch, train, add noise, store, send.

    told = run_local(settings, store, protection)

The devices come one after the other, `visits` times each. A device takes part only in a job whose update
costs at most the epsilon that its owner allows. Under LINE it uses each log in one update only; under draw
and discard it trains on all its examples.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import numpy as np

from browser_sim.devices.device_data import Holdings
from browser_sim.devices.http_client import HttpClient
from browser_sim.devices.local_store import LocalStore, Waiting
from browser_sim.draws import Draws
from browser_sim.endpoint import Protection
from maskedlark.canonical import decode
from maskedlark.errors import InvalidTask
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.generalised_linear import Batches, Multinomial
from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.local_job import LocalUpdate, check_epsilon, cost_of, read_local_job
from maskedlark.federated.local_training import Examples
from maskedlark.federated.strategies.line import Line
from maskedlark.federated.strategy import Round, device_stream
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.terminal.plural import plural

MAX_BODY_BYTES: Final = 4 << 20
MEDIA_TYPE: Final = "application/octet-stream"
_BYTE: Final = np.float32(255)
_ID_BYTES: Final = 16
_LENGTH_BYTES: Final = 4
_RETURNS_BYTES: Final = 8


@frozen
class LocalSettings:
    """How devices take part in a job without helpers.

    Attributes:
        site: The ad server's HTTP address.
        job_id: The job.
        holdings: What devices hold.
        most_epsilon: The most that an update may cost; whole updates are counted.
        visits: How often each device comes.
        twice: The probability that an update is sent a second time.
        seed: Replays batches and noise; None: the system's randomness, as real devices use.
    """

    site: str
    job_id: bytes
    holdings: Holdings
    most_epsilon: float
    visits: int = 1
    twice: float = 0.0
    seed: int | None = None


@dataclass(kw_only=True)
class _LocalTold:
    """What became of the devices' updates.

    Attributes:
        devices: That took part.
        accepted: Updates that the ad server has.
        duplicates: Answers to updates that it had already: sent twice, or again after a lost answer.
        without_logs: Visits of devices that had too few fresh logs.
        reasons: Of refusals, by name.
        most_user_epsilon: The largest epsilon that all updates of a *person* to this job cost together.
    """

    devices: int = 0
    accepted: int = 0
    duplicates: int = 0
    without_logs: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    most_user_epsilon: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the attributes as JSON."""
        return dict(vars(self))

    @property
    def sentence(self) -> str:
        """The same for people."""
        found = [f"{plural(self.devices, 'device')}: {plural(self.accepted, 'update')} accepted"]
        if self.duplicates:
            found.append(f"{self.duplicates} that the ad server had already")
        if self.without_logs:
            found.append(
                f"{plural(self.without_logs, 'visit')} without one, since a device had fewer fresh examples "
                "than local.batch_size and uses each once"
            )
        found += [f"{count} not taken ({reason.replace('_', ' ')})" for reason, count in self.reasons.items()]
        if self.most_user_epsilon is not None:
            found.append(
                f"all updates of a person to this job cost up to epsilon {self.most_user_epsilon:.3g}"
            )
        return "; ".join(found)


@frozen
class _LocalAsked:
    """What a device downloads, checked."""

    job: LocalJob
    content: bytes = field(repr=False)


def _read_asked(body: bytes, job_id: bytes, most_epsilon: float) -> _LocalAsked:
    """Parse and check what the ad server asks. Called by a device.

    Raises:
        InvalidTask, InvalidModel: not a job that this device takes part in.
    """
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    job = decode(LocalJob, body[_LENGTH_BYTES:end])
    if job.job_id != job_id:
        raise InvalidTask("the ad server returned a different job for this id")
    # The owner's limit, against what the device itself finds that an update costs.
    check_epsilon(job, most_epsilon)
    return _LocalAsked(job=job, content=body[end:])


def _draw_and_discard_update(asked: _LocalAsked, examples: Examples, randomness: Randomness) -> LocalUpdate:
    """Take one noised step on the drawn instance; the id is drawn before the noise.

    Called by a device in a draw-and-discard job.

    Raises:
        InvalidTask: the instance is of another length, or the job of another strategy.
    """
    settings, model = read_local_job(asked.job)
    if not isinstance(settings, DrawAndDiscard) or not isinstance(model, Multinomial):
        raise InvalidTask("the job uses a different strategy than the one expected")
    if len(asked.content) != _RETURNS_BYTES + 8 * model.size:
        raise InvalidTask(
            f"the received instance has the wrong length: expected {model.size} weights for this job"
        )
    update_id = randomness(_ID_BYTES)
    drawn = np.frombuffer(asked.content, "<i8", offset=_RETURNS_BYTES)
    batch = Batches(features=examples.features[None] / _BYTE, labels=examples.labels[None])
    moved = settings.device_steps(model, drawn[None], batch, randomness)[0]
    returns = int.from_bytes(asked.content[:_RETURNS_BYTES], "little")
    return LocalUpdate(update_id=update_id, position=returns, vector=moved)


class _LocalFleet:
    """Devices that send already noised updates to one job."""

    def __init__(
        self,
        settings: LocalSettings,
        store: LocalStore,
        client: httpx.Client,
        *,
        pause: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._site = HttpClient(client, settings.site, pause)
        self._draws = Draws(seed=settings.seed)
        self.told = _LocalTold(devices=len(settings.holdings.population))

    def run(self) -> _LocalTold:
        """Let every device come, until the visits are over or the job is.

        Raises:
            InvalidTask, InvalidModel: the job is not one that devices take part in.
            HelperUnavailable: the ad server does not answer.
        """
        for visit in range(self._settings.visits):
            for device in range(self.told.devices):
                # First what a visit before stored and could not deliver: its logs count as used already.
                for waiting in self._store.waiting(device):
                    self._send(device, waiting)
                if not self._visit(visit, device):
                    return self.told
        return self.told

    def _visit(self, visit: int, device: int) -> bool:
        """Let one device act; return whether the job goes on."""
        body = self._site.fetch(f"/v1/local/{self._settings.job_id.hex()}", limit=MAX_BODY_BYTES)
        if body is None:
            return False
        asked = _read_asked(body, self._settings.job_id, self._settings.most_epsilon)
        settings, model = read_local_job(asked.job)
        if isinstance(settings, Line) and isinstance(model, DenseModel):
            content = Round.decode(asked.content, model.size)
            self._line(device, settings, model, content)
        else:
            held = self._settings.holdings.examples(device)
            waiting = self._waiting(_draw_and_discard_update(asked, held, self._stream(visit, device)))
            # Stored first: what a device dies over is sent again as these bytes.
            self._store.put(device, waiting)
            updates = self._store.events(device, self._settings.job_id)
            self._spent(updates * cost_of(asked.job).whole_update)  # each uses all that the device holds
            self._send(device, waiting)
        return True

    def _line(self, device: int, line: Line, model: DenseModel, content: Round) -> None:
        """Train on logs that no update used, noise, and store both before anything is sent."""
        # Computed here, not believed: the server does not choose another rate, or less noise.
        if content.terms != line.terms(content.terms.index):
            raise InvalidTask("the round's terms differ from those of its job")
        held = self._settings.holdings.examples(device)
        logs = self._store.logs(device, self._settings.job_id, len(held))
        # An event of LINE is one whole batch of fresh logs: fewer wait for more.
        if len(logs.fresh) < line.local.batch_size:
            self.told.without_logs += 1
            return
        taken = logs.take(line.local.batch_size)
        places = [_number_of(log) for log in taken.logs]
        examples = Examples(features=held.features[places], labels=held.labels[places])
        stream = self._stream(logs.used_events, device)
        stream(_ID_BYTES)  # where a coin's bytes are drawn of strategies that have one
        vector = line.device_vectors(model, content, [examples], [stream])[0]
        update_id = self._draws.stream(f"update {logs.used_events} {device}")(_ID_BYTES)
        update = LocalUpdate(update_id=update_id, position=content.terms.index, vector=vector)
        waiting = self._waiting(update)
        self._store.keep(device, taken.rest, len(held), waiting)
        self._spent(taken.rest.user_epsilon(line.sigma, line.delta))
        self._send(device, waiting)

    def _spent(self, epsilon: float) -> None:
        """Note what a person's updates cost together; not without noise."""
        if math.isfinite(epsilon):
            self.told.most_user_epsilon = max(self.told.most_user_epsilon or 0.0, epsilon)

    def _waiting(self, update: LocalUpdate) -> Waiting:
        return Waiting(
            job_id=self._settings.job_id, update_id=update.update_id, position=update.position,
            body=update.encode(),
        )  # fmt: skip

    def _send(self, device: int, waiting: Waiting) -> None:
        """Send stored bytes, and again if no answer comes: an id counts once."""
        # A stream of the id's own, so that how often a device comes leaves the others' luck as it is.
        again = float(np.frombuffer(self._draws.stream(f"twice {waiting.update_id.hex()}")(1), np.uint8)[0])
        for turn in range(2 if again < 256 * self._settings.twice else 1):
            reply = self._site.send(f"/v1/local/{waiting.job_id.hex()}", waiting.body, MEDIA_TYPE)
            if reply.is_taken:
                self.told.accepted += turn == 0
                self.told.duplicates += reply.is_duplicate
            else:
                self.told.reasons[reply.reason] += 1
        self._store.forget_update(device, waiting.update_id)

    def _stream(self, updates: int, device: int) -> Randomness:
        """Return the randomness of a device's next update, after so many."""
        seed = self._settings.seed
        return system_randomness if seed is None else device_stream(seed, updates, device)


def run_local(settings: LocalSettings, store: LocalStore, protection: Protection) -> _LocalTold:
    """Connect and run devices to the end; raises as `_LocalFleet.run`."""
    with protection.http_client(settings.site) as client:
        return _LocalFleet(settings, store, client, pause=time.sleep).run()


def _number_of(log: bytes) -> int:
    """Return the position of a log among those that its device holds."""
    return int.from_bytes(log, "big")

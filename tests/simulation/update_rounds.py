"""A seeded simulation of federated rounds: devices that are late, double, foreign or gone, and processes that
die anywhere.

    told = run_seed(7, folder)
    assert not told.violations

One thread runs the ad server's real job, two real helpers and real devices. Whenever the job waits, devices
do something; before and after each step that is durable, something may die: the ad server goes on from its
checkpoint, a helper opens its ledger again, a device its store. All of it is a function of the seed.

At the end: each helper has charged each round once, and has given one answer to it however often; what was
acknowledged within a window is in that round's dataset, at both helpers; and without noise the model has the
bits that the acknowledged updates give in the clear.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from adserver.store.job_folder import JobFolder
from adserver.store.rounds import DeviceRoundState
from adserver.training.federated.run import FederatedRun
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device import Device, DeviceRequest, read_round
from maskedlark.canonical import encode
from maskedlark.errors import HelperUnavailable, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.strategy import ServerState, device_stream
from maskedlark.randomness import seeded
from maskedlark.releases.instructions import read_instructions
from maskedlark.releases.update import UpdateSpec
from maskedlark.rpc.wire import decode_report
from tests.builders import NOW
from tests.federated_site import DEVICES, MODEL, ROUNDS, SETTINGS, CoreHelper, Killed, Site

_CRASH: Final = 0.06
_MOST_LIVES: Final = 200
_MOST_POLLS: Final = 400
_KINDS: Final = ("on time", "twice", "late", "foreign", "gone", "forged")
_WEIGHTS: Final = (10, 2, 2, 2, 1, 1)


@dataclass(kw_only=True)
class Told:
    """What came of a seed.

    Attributes:
        violations: What must never happen, but did.
        kinds: What devices did, and how often.
        deaths: Of processes.
    """

    violations: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    deaths: int = 0


class NoCurves:
    """A job's pictures, not drawn."""

    @classmethod
    def opened(cls, *_: object, **__: object) -> "NoCurves":
        return cls()

    def __enter__(self) -> "NoCurves":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def append(self, *_: object) -> None:
        """Nothing."""

    record = append


class World:
    """One seed: an ad server, two helpers, six devices, and chance."""

    def __init__(self, seed: int, folder: Path) -> None:
        noise = {"mechanism": "gaussian", "epsilon": 16.0, "collusion_epsilon": 60.0}
        self.is_noisy = bool(seed % 2)
        self.site = Site(folder, noise if self.is_noisy else {})
        self.told = Told()
        self.chance = Random(f"{seed} update rounds")
        self.seed = seed
        self.now_s = float(NOW)
        self.polls = 0
        self.acknowledged: dict[int, dict[bytes, int]] = {index: {} for index in range(ROUNDS)}
        self.answers: dict[tuple[int, int], bytes] = {}
        self.acted: set[tuple[int, int]] = set()
        self.late: list[bytes] = []
        settings = {**SETTINGS, "noise_multiplier": 2.0} if self.is_noisy else SETTINGS
        self.site.submit(settings=settings, least_devices=3, window_s=2.0)
        self.plan: Any = self.site.store.get(self.site.job_id).plan

    def run(self) -> Told:
        """Life after life of the ad server, until the job is done; then look at what came of it."""
        for _ in range(_MOST_LIVES):
            with suppress(Killed):
                self._life()
                break
            self.told.deaths += 1
        else:
            self.told.violations.append("the job did not end")
            return self.told
        with suppress(Killed):
            self._look()
        return self.told

    def _life(self) -> None:
        pair: Any = Pair(self)
        with patch("adserver.training.federated.run.CurveWriter", NoCurves):
            FederatedRun(
                plan=self.plan,
                folder=Fragile(JobFolder(self.site.folder / "adserver", self.site.job_id), self),
                rounds=Fragile(self.site.rounds, self),  # type: ignore[arg-type]
                pair=pair,
                leases=NoCurves(),  # type: ignore[arg-type]
                history=(),
                clock=lambda: self.now_s,
                randomness=lambda count: bytes(self.chance.randrange(256) for _ in range(count)),
            ).to_the_end()

    def maybe_die(self) -> None:
        """The ad server's process may end here."""
        if self.chance.random() < _CRASH:
            raise Killed

    def wait(self, _seconds: float) -> bool:
        """Time passes while the job waits for devices, and one of them does something."""
        self.now_s += 0.25
        self.polls += 1
        self.maybe_die()
        stored = self.site.rounds.newest_open(self.site.scene.task_id)
        if self.polls > _MOST_POLLS:
            self.told.violations.append("a round stays open")
            return True
        if stored is None:
            return False
        encoded = encode(stored.round)
        asked = read_round(
            len(encoded).to_bytes(4, "little") + encoded + stored.content, self.site.scene.task
        )
        index = asked.round.round_index
        left = [number for number in range(DEVICES) if (index, number) not in self.acted]
        if left:
            self._act(asked, self.chance.choice(left))
        elif self.site.rounds.count(stored.round.round_id) < self.plan.least_devices:
            for number in range(DEVICES):  # who was gone or late sends what it has stored
                self._send(self._stored(asked, number), index, number)
        return False

    def _act(self, asked: DeviceRequest, number: int) -> None:
        index = asked.round.round_index
        self.acted.add((index, number))
        kind = self.chance.choices(_KINDS, _WEIGHTS)[0]
        self.told.kinds[kind] = self.told.kinds.get(kind, 0) + 1
        report = self._stored(asked, number)
        match kind:
            case "on time":
                self._send(report, index, number)
            case "twice":
                self._send(report, index, number)
                self._send(report, index, number)
            case "late":
                self.late.append(report)
            case "foreign":
                self._refused(replace(decode_report(report), round_id=bytes(32)), ReportReason.UNKNOWN_ROUND)
                self._send(report, index, number)
            case "forged":
                forged = decode_report(report)
                share = forged.shares[1]
                flipped = bytes([share.ciphertext[-1] ^ 1])
                broken = replace(share, ciphertext=share.ciphertext[:-1] + flipped)
                fresh = bytes([255, index, number]) + forged.report_id[3:]
                self.site.intake.take(replace(forged, report_id=fresh, shares=(forged.shares[0], broken)))
        for late in self.late if self.chance.random() < 0.5 else []:
            if decode_report(late).round_id != asked.round.round_id:
                self._refused(decode_report(late), ReportReason.ROUND_OVER)

    def _stored(self, asked: DeviceRequest, number: int) -> bytes:
        """A device's answer, by a store that is opened anew: it may have been restarted since."""
        chosen = self.site.population.members[number]
        examples = replace(
            self.site.examples,
            features=self.site.examples.features[chosen],
            labels=self.site.examples.labels[chosen],
        )
        with AnswerStore(self.site.answers) as answers:
            device = Device(
                number=number,
                examples=examples,
                sealer=self.site.scene.updates,
                answers=answers,
                cap=None,
                training=lambda index, device: device_stream(self.seed, index, device),
                sealing=lambda index, device: seeded(1_000 * index + device, "sealing"),
            )
            return device.answer(asked, unix_s=NOW).report or b""

    def _send(self, encoded: bytes, index: int, number: int) -> None:
        report = decode_report(encoded)
        self.site.intake.take(report)
        self.acknowledged[index][report.report_id] = number

    def _refused(self, report: Any, reason: ReportReason) -> None:
        try:
            self.site.intake.take(report)
        except ReportRejected as refusal:
            if refusal.reason is not reason:
                self.told.violations.append(f"refused as {refusal.reason}, not as {reason}")
        else:
            self.told.violations.append(f"an update that is {reason} was acknowledged")

    def released(self, role: int, spec: UpdateSpec, answer: bytes) -> None:
        """A helper's answer has left it: charged before, and the same as ever."""
        index = spec.round.round_index
        if self.answers.setdefault((role, index), answer) != answer:
            self.told.violations.append(f"helper {role} gave two answers to round {index}")
        ledger = self.site.scene.cores[role].queries.ledger
        held = [one for one in ledger.reservations(spec.dataset_id) if one.spec == spec]
        if len(held) != 1:
            self.told.violations.append(f"helper {role} released round {index} charged {len(held)} times")

    def _look(self) -> None:
        scene = self.site.scene
        for role, core in enumerate(scene.cores):
            ledger = core.queries.ledger
            if core.counts().datasets < ROUNDS:
                self.told.violations.append(f"helper {role} holds {core.counts().datasets} datasets")
                continue
            some = next(iter(self._datasets().values()))
            charged = sorted(one.spec.round.round_index for one in ledger.reservations(some))  # type: ignore[union-attr]
            if charged != list(range(ROUNDS)):
                self.told.violations.append(f"helper {role} has charged the rounds {charged}")
            for index, ids in self.acknowledged.items():
                lost = ids.keys() - ledger.find_used(scene.task_id, list(ids))
                if lost:
                    self.told.violations.append(
                        f"{len(lost)} acknowledged updates of round {index} are lost at helper {role}"
                    )
        if not self.is_noisy and self.site.state() != self.in_the_clear():
            self.told.violations.append("the model has not the bits of the updates in the clear")

    def _datasets(self) -> dict[int, bytes]:
        strategy, _ = read_instructions(self.plan.job)
        del strategy
        found = {}
        with self.site.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT round_index, dataset_id, state FROM update_rounds")
            for index, dataset, state in rows:
                if state != DeviceRoundState.RELEASED:
                    self.told.violations.append(f"round {index} is {state} at the end")
                found[index] = bytes(dataset)
        return found

    def in_the_clear(self) -> bytes:
        """The model that the acknowledged updates of each round give, added up in the clear."""
        strategy, _ = read_instructions(self.plan.job)
        state: ServerState = strategy.start(MODEL.initial(seeded(self.plan.seed, "first weights")))
        while (asked := strategy.next_round(state)) is not None:
            total = np.zeros(MODEL.size, np.int64)
            for number in self.acknowledged[state.rounds_done].values():
                stream = device_stream(self.seed, state.rounds_done, number)
                if toss(asked.terms.sampling_rate, strategy.cover_rate, stream) is Part.UPDATE:
                    chosen = self.site.population.members[number]
                    examples = replace(
                        self.site.examples,
                        features=self.site.examples.features[chosen],
                        labels=self.site.examples.labels[chosen],
                    )
                    total += strategy.device_vectors(MODEL, asked, [examples], [stream])[0]
            state = strategy.step(state, asked, total)
        return state.encode()


class Fragile:
    """A store at the ad server whose process may die before and after whatever it writes."""

    _WRITES: Final = frozenset(
        {"open", "close", "choose", "begin_again", "release_before", "write_checkpoint"}
    )

    def __init__(self, store: Any, world: World) -> None:
        self._store, self._world = store, world

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in self._WRITES:
            return method

        def write(*args: Any, **named: Any) -> Any:
            self._world.maybe_die()
            result = method(*args, **named)
            self._world.maybe_die()
            return result

        return write


@dataclass
class Pair:
    """`HelperPair` without threads: both helpers, one after the other, each again until it answers."""

    world: World

    @property
    def interrupted(self) -> World:
        """What the job waits on."""
        return self.world

    def ask(self, call: Callable[[int, Any], Any]) -> tuple[Any, Any]:
        """Both answers."""
        first, second = (self._until_answered(role, call) for role in (0, 1))
        return first, second

    def _until_answered(self, role: int, call: Callable[[int, Any], Any]) -> Any:
        while True:
            with suppress(HelperUnavailable):
                return call(role, Mortal(self.world.site.scene, role, self.world))


class Mortal(CoreHelper):
    """A helper that may die before or after it did what it was asked; it comes back with what it stored."""

    def __init__(self, scene: Any, role: int, world: World) -> None:
        super().__init__(scene, role)
        self._world = world

    def step(self, name: str) -> None:
        chance = self._world.chance
        if chance.random() < _CRASH:
            self._world.told.deaths += 1
            self.scene.restart()
            raise HelperUnavailable(f"died at {name}")
        self._world.maybe_die()

    def run_query(self, spec: UpdateSpec, beside: bytes, length: int, **how: Any) -> Any:
        answer = super().run_query(spec, beside, length, **how)
        self._world.released(self.role, spec, answer.share.encode())
        return answer


def run_seed(seed: int, folder: Path) -> Told:
    """Simulate one seed."""
    world = World(seed, folder)
    try:
        return world.run()
    except (JobRefused, ReportRejected) as refusal:
        world.told.violations.append(f"the job was stopped: {refusal.reason}")
        return world.told
    finally:
        world.site.engine.dispose()

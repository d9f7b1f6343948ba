"""A canary device in federated rounds: whether it took part, by what it shares and by what it does.

Every part is real: the device's own coin, store and sealing, two helpers over gRPC, and their ledgers'
claims. Three devices answer each round; the canary's update is the largest that clipping, weight and count
leave, or it is zeroed. The adversary knows the rest, sees who uploads, and projects the sum on that update;
with a helper it takes that helper's noise off.

Also builds that are broken on purpose: half of the noise, none, devices that are silent instead of sending
cover, and a device that does not clip.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from adserver.peers.client import HelperClient
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device import Device, DeviceRequest
from helper.core import HelperCore
from helper.releases.queries import Queries
from maskedlark import canonical
from maskedlark.canonical import encode
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategy import Round
from maskedlark.interrupt import Interrupt
from maskedlark.privacy.accounting import compose_epsilon
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import NoiseSource, noise_vector
from maskedlark.randomness import Randomness, Stream, seeded
from maskedlark.releases.instructions import update_job, update_round
from maskedlark.releases.release import combine
from maskedlark.releases.update import UpdateSpec, seen_rate
from maskedlark.reports.task import HelperIdentity, Task, TaskBundle
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.reports.updates import UpdateForm, UpdateVector
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import decode_report
from tests import charge_builders
from tests.audit.bounds import Guesses, Rates
from tests.audit.part import Finding, Part, figures_of
from tests.audit.site import COLLUDING_HELPER, DELTA, OPEN_FLOORS, seal_at, temporary_folder
from tests.builders import NOW, fitting_noise, settings
from tests.federated_site import served
from tests.helper.parties import Party

ROUNDS: Final = 400
ERROR: Final = 0.05 / 16
"""Of each of sixteen findings: all of them hold together with a confidence of .95."""
OTHERS: Final = 2
MODEL: Final = DenseModel(widths=(1, 2))
CLIP_NORM: Final = 1.0
FRAC_BITS: Final = 24
UNCLIPPED: Final = 4
"""How many times too long the update of a device is that does not clip."""
_ROUNDS_OF_A_TASK: Final = 50
"""A helper's work for a release grows with what it has charged to the task."""


@unique
class Broken(StrEnum):
    """What is wrong on purpose."""

    NOTHING = "nothing"
    HALVED_NOISE = "halved noise"
    NO_NOISE = "no noise"
    NO_COVER = "no cover"
    NO_CLIP = "no clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One audit.

    Attributes:
        epsilon: What a round that surely holds the canary is calibrated to claim against (b).
        sampling_rate: Of each device's coin.
        cover: The task's.
        broken: What is wrong.
        rounds: With the canary, and as many without.
    """

    epsilon: float = 8.0
    sampling_rate: float = 1.0
    cover: float = 1.0
    broken: Broken = Broken.NOTHING
    rounds: int = ROUNDS

    @property
    def rate(self) -> float:
        """The rate that is charged."""
        return seen_rate(self.sampling_rate, self.cover)

    @property
    def noise_multiplier(self) -> float:
        """Of each helper."""
        return fitting_noise(
            math.inf,
            DELTA,
            mechanism=Mechanism.GAUSSIAN,
            sampling_rate=1.0,
            rounds=1,
            already=(),
            collusion_epsilon=self.epsilon,
        )


HONEST: Final = (
    Case(),
    Case(epsilon=16.0, sampling_rate=0.5),
    Case(epsilon=16.0, sampling_rate=0.5, cover=0.5),
    Case(epsilon=16.0, sampling_rate=0.5, cover=0.0),
)
BROKEN: Final = (
    Case(broken=Broken.HALVED_NOISE),
    Case(broken=Broken.NO_NOISE, rounds=ROUNDS // 2),
    Case(broken=Broken.NO_CLIP, rounds=ROUNDS // 2),
    Case(broken=Broken.NO_COVER, epsilon=16.0, sampling_rate=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfDevice(Finding):
    """A finding with its case.

    Attributes:
        case: What was audited.
        uploads: Rounds that the canary answered at all, of both kinds.
    """

    case: Case
    uploads: int


def honest(seed: int) -> Part:
    """The claims hold, for devices with and without cover."""
    findings = [finding for case in HONEST for finding in audit(case, seed)]
    return Part(
        claims={"federated_under_claim": all(one.shown <= one.claimed for one in findings)},
        figures={"federated_findings": [figures_of(one) for one in findings]},
    )


def broken(seed: int) -> Part:
    """Builds that leave something out are caught."""
    findings = [finding for case in BROKEN for finding in audit(case, seed)]
    claims = {
        f"federated_{case.broken.replace(' ', '_')}_caught": all(
            one.shown > one.claimed for one in findings if one.case == case
        )
        for case in BROKEN
    }
    return Part(claims=claims, figures={"federated_broken": [figures_of(one) for one in findings]})


def audit(case: Case, seed: int) -> tuple[OfDevice, OfDevice]:
    """Both adversaries' findings."""
    with temporary_folder() as folder, _site(folder, case, seed) as site:
        without, with_canary = (site.observe(is_in=is_in) for is_in in (False, True))
        claimed = site.claimed
    found = []
    for role, adversary in enumerate(("ad_server", "ad_server_and_helper")):
        # Only a round that the canary answered tells anything; whether it does hangs on its coin alone.
        seen = [values[:, role][~np.isnan(values[:, role])] for values in (with_canary, without)]
        rates = Guesses.above(seen[0], seen[1], 0.5).rates(ERROR)
        found.append(
            OfDevice(
                case=case,
                adversary=adversary,
                claimed=claimed[role],
                shown=sampled_epsilon(rates, case.rate, DELTA),
                uploads=len(seen[0]) + len(seen[1]),
            )
        )
    return found[0], found[1]


def sampled_epsilon(rates: Rates, rate: float, delta: float) -> float:
    """The epsilon at `delta` of the most private Gaussian round with a secret sample that allows these rates.

    At a false alarm rate f the best test has the hit rate (1 - q) f + q Phi(Phi^-1(f) + mu). Infinite if no
    mu is large enough: then the sample is no secret.
    """
    false_alarm = rates.false_alarm_at_most
    of_drawn = (rates.hit_at_least - (1 - rate) * false_alarm) / rate
    if of_drawn >= 1:
        return math.inf
    mu = float(norm.ppf(of_drawn) - norm.ppf(false_alarm)) if of_drawn > 0 else 0.0
    if mu <= 0:
        return 0.0
    charged = charge_builders.gaussian(1 / mu, rate=rate)
    return compose_epsilon([charged], delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary(Device):
    """A device whose training gives the worst update, or nothing."""

    vector: UpdateVector

    def _update(self, asked: DeviceRequest, training: Randomness) -> UpdateVector:
        del asked, training
        return self.vector


@dataclass(kw_only=True)
class Site:
    """Two helpers over gRPC, three devices, and an ad server that makes task after task.

    Attributes:
        claimed: Both epsilons of one round, as a helper stated them.
    """

    case: Case
    cores: tuple[HelperCore, HelperCore]
    identities: tuple[HelperIdentity, HelperIdentity]
    clients: tuple[HelperClient, HelperClient]
    folder: Path
    randomness: Stream
    claimed: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self._taken: list[NDArray[np.int64]] = []
        self._tasks = 0
        for role, core in enumerate(self.cores):
            self._tap(core, seeded(int.from_bytes(self.randomness(4), "little"), f"noise {role}"), role)

    def observe(self, *, is_in: bool) -> NDArray[np.float64]:
        """(rounds, 2): what each adversary sees of the canary, in units of its length.

        NaN without an upload.
        """
        seen: list[NDArray[np.float64]] = []
        while len(seen) < self.case.rounds:
            seen += self._of_task(min(_ROUNDS_OF_A_TASK, self.case.rounds - len(seen)), is_in=is_in)
        return np.stack(seen)

    def _of_task(self, rounds: int, *, is_in: bool) -> list[NDArray[np.float64]]:
        bundle = self._task()
        task, sealer = bundle.task, UpdateSealer(bundle, now=NOW)
        strategy = _strategy(self.case, rounds)
        job = update_job(job_id=self.randomness(16), task_id=task.task_id, strategy=strategy, model=MODEL)
        worst = _worst(task, sealer.form) * (UNCLIPPED if self.case.broken is Broken.NO_CLIP else 1)
        seen = []
        with AnswerStore(self.folder / f"answers {self._tasks}") as answers:
            canary = Canary(
                number=0,
                examples=Examples(features=np.zeros((1, 1), np.uint8), labels=np.zeros(1, np.int64)),
                sealer=_Unchecked(bundle, now=NOW) if self.case.broken is Broken.NO_CLIP else sealer,
                answers=answers,
                cap=None,
                training=lambda _index, _device: self.randomness,
                sealing=lambda _index, _device: self.randomness,
                vector=worst if is_in else sealer.form.zeros(),
            )
            for index in range(rounds):
                content = Round(terms=strategy.terms(index), parameters=np.zeros(MODEL.size, np.float32))
                one = update_round(job, content)
                asked = DeviceRequest(
                    round=one, content=content, strategy=_told(strategy, self.case), model=MODEL
                )
                answer = canary.answer(asked, unix_s=NOW)
                reports = [] if answer.report is None else [decode_report(answer.report)]
                others = [
                    sealer.report(
                        one.round_id, task.clip, sealer.form.zeros(), unix_s=NOW, randomness=self.randomness
                    )
                    for _ in range(OTHERS)
                ]
                dataset = seal_at(
                    self.clients, task, reports + others, self.randomness, update_round=encode(one)
                )
                total = self._released(UpdateSpec(dataset_id=dataset, round=one))
                both = np.stack([total, total - self._taken[-1]])
                seen.append(both @ worst / (worst @ worst) if reports else np.full(2, np.nan))
        return seen

    def _released(self, spec: UpdateSpec) -> NDArray[np.int64]:
        length = MODEL.size + 2
        first, second = (client.run_query(spec, b"", length) for client in self.clients)
        if spec.round.round_index == 0:
            self.claimed = (first.dataset_spent.ad_server, first.dataset_spent.colluding)
        return combine(first.share, second.share)

    def _task(self) -> TaskBundle:
        self._tasks += 1
        form = UpdateForm(
            num_parameters=MODEL.size, has_weight=True, has_clip_count=True, cover=self.case.cover
        )
        made = settings(
            helpers=self.identities,
            salt=self.randomness(16),
            unit="user",
            updates=form,
            num_features=1,
            mechanism="gaussian",
            norm="l2",
            clip_norm=CLIP_NORM,
            frac_bits=FRAC_BITS,
            min_batch_size=OTHERS,
            epsilon=1e6,
            collusion_epsilon=1e6,
            delta=DELTA,
        )
        task = canonical.build(Task, made)
        signatures = [client.register_task(task) for client in self.clients]
        lists = [core.status().key_list for core in self.cores]
        return TaskBundle(
            task=task, signatures=(signatures[0], signatures[1]), key_lists=(lists[0], lists[1])
        )

    def _tap(self, core: HelperCore, stream: Stream, role: int) -> None:
        """Where a helper's noise comes from, and the colluding one's is seen; broken as the case wants it."""
        scale_by = {Broken.HALVED_NOISE: 0.5, Broken.NO_NOISE: 0.0}.get(self.case.broken, 1.0)

        def noise(mechanism: Mechanism, scale: int, count: int) -> NDArray[np.int64]:
            if scale_by == 0:
                drawn = np.zeros(count, np.int64)
            else:
                drawn = noise_vector(mechanism, int(scale * scale_by), count, stream)
            if role == COLLUDING_HELPER:
                self._taken.append(drawn)
            return drawn

        before = core.queries
        core.queries = _Tapped(
            tasks=before.tasks,
            datasets=before.datasets,
            executor=before.executor,
            ledger=before.ledger,
            quota=before.quota,
            randomness=before.randomness,
        )
        object.__setattr__(core.queries, "source", noise)


class _Tapped(Queries):
    """A helper's releases with noise from elsewhere: the one thing that is not as in production."""

    source: NoiseSource

    def _noise(self, interrupt: Interrupt) -> NoiseSource:
        del interrupt
        return self.source


class _Unchecked(UpdateSealer):
    """Seals what no honest device would: it is told that the bound is larger."""

    def report(
        self, round_id: bytes, clip: Clip, vector: UpdateVector, *, unix_s: float, randomness: Randomness
    ) -> Report:
        larger = replace(clip, bound=UNCLIPPED * clip.bound)
        return super().report(round_id, larger, vector, unix_s=unix_s, randomness=randomness)


def _told(strategy: DpFedAvg, case: Case) -> DpFedAvg:
    """The strategy that a device follows.

    One that lacks the cover falls silent where the task wants zeros.
    """
    return replace(strategy, cover_rate=0.0) if case.broken is Broken.NO_COVER else strategy


def _worst(task: Task, form: UpdateForm) -> UpdateVector:
    """The longest update that may be sent."""
    vector = np.zeros(form.length, np.int64)
    units = form.figure_units(task.clip)
    vector[0], vector[form.num_parameters], vector[-1] = task.clip.sensitivity, units, units
    return vector


def _strategy(case: Case, rounds: int) -> DpFedAvg:
    return DpFedAvg(
        devices=OTHERS + 1,
        sampling_rate=case.sampling_rate,
        rounds=rounds,
        noise_multiplier=case.noise_multiplier,
        bound=UpdateBound(clip_norm=CLIP_NORM, frac_bits=FRAC_BITS, is_weight_summed=True, is_counted=True),
        cover_rate=case.cover,
        least_weight=1.0,
        quantile=AdaptiveClip(initial=1.0),
    )


@contextmanager
def _site(folder: Path, case: Case, seed: int) -> Iterator[Site]:
    with ExitStack() as stack:
        parties = [Party(data=folder / name, floors=OPEN_FLOORS) for name in ("north", "south")]
        first, second = (party.open() for party in parties)
        yield Site(
            case=case,
            cores=(first, second),
            identities=(parties[0].keys.identity, parties[1].keys.identity),
            clients=(stack.enter_context(served(first)), stack.enter_context(served(second))),
            folder=folder,
            randomness=seeded(seed, f"federated {case}"),
        )

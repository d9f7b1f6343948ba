"""Two real helpers behind gRPC ports, and the calls of an ad server that wants to know whether one report is
in a dataset.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adserver.peers.client import HelperClient
from helper.core import HelperCore
from helper.executors.local import LocalExecutor
from helper.gradient.choose import choose_engine
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import ReleaseKey
from helper.releases.noise_cache import NoiseCache, NoiseOrder, NoiseVector
from helper.releases.release_grid import ReleaseGrid
from helper.serving.service import HelperService
from helper.trust.floors import Floors
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.interrupt import Interrupt, never
from maskedlark.model import weights
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import Randomness, Stream, seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.started_job import StartedJob
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.report import Example
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.runtime.database import open_database
from tests.builders import NOW, id_of_reports, job_spec, settings, shares_for
from tests.helper.parties import Party, make_model
from tests.helper.served import served

COLLUDING_HELPER = 1
CLIP_NORM = 0.0625
DELTA = 1e-5
DEADLINE_S = 900.0  # a busy machine breaks no claim
OPEN_FLOORS = Floors(
    min_batch_size=2, max_epsilon=1e6, max_collusion_epsilon=1e6, max_delta=1e-3, is_noise_optional=True
)


class RecordedNoise(NoiseCache):
    """The noise of a helper that colludes: it is used like any, and the adversary has it too."""

    def __init__(self, randomness: Randomness) -> None:
        super().__init__(randomness)
        self.taken: list[NoiseVector] = []

    def take(self, job: ReleaseKey, order: NoiseOrder, interrupt: Interrupt = never) -> NoiseVector:
        self.taken.append(super().take(job, order, interrupt))
        return self.taken[-1]


class HalvedNoise(RecordedNoise):
    """A helper with a bug that no user of it would notice.

    Its noise has half the scale that it charges for.
    """

    def _draw(self, order: NoiseOrder, interrupt: Interrupt = never) -> NoiseVector:
        return super()._draw(replace(order, scale=order.scale // 2), interrupt)


class Site:
    """Two helpers and one task. Everything that a round takes and gives passes through gRPC."""

    def __init__(
        self,
        *,
        task: Task,
        clients: Sequence[HelperClient],
        cores: Sequence[HelperCore],
        model: bytes,
        loss: Loss,
        seed: int,
        folder: Path,
    ) -> None:
        self.task = task
        self.folder = folder
        self.clients = clients
        self.cores = cores
        self.onnx = model
        self.loss = loss
        self.model = parse(model, num_features=task.num_features)
        self.randomness = seeded(seed, "audit")
        self._pool = ThreadPoolExecutor(2)
        signatures = tuple(self.both(lambda client: client.register_task(task)))
        key_lists = tuple(core.status().key_list for core in cores)
        self.bundle = TaskBundle(
            task=task, signatures=(signatures[0], signatures[1]), key_lists=(key_lists[0], key_lists[1])
        )
        self.sealer = Sealer(self.bundle, now=NOW)

    def both(self, call: Callable[[HelperClient], Any]) -> list[Any]:
        """One call to both helpers at once; the answers by role."""
        return list(self._pool.map(call, self.clients))

    def seal(self, examples: Sequence[Example]) -> bytes:
        """A dataset of these examples; its id."""
        reports = [
            self.sealer.report(example, unix_s=NOW, randomness=self.randomness) for example in examples
        ]
        return seal_at(self.clients, self.task, reports, self.randomness)

    def seal_canary(self, records: int, label: int | None) -> bytes:
        """A dataset of fake reports but for the canary, whose features are zeros; without a label it is fake
        too.
        """
        others = Example(features=np.array([1, 0, 0, 0], np.uint8), label=None)
        return self.seal([others] * (records - 1) + [Example(features=np.zeros(4, np.uint8), label=label)])

    def of_colluder(self, dataset: bytes) -> tuple[PairKey, int]:
        """What the colluding helper knows of a dataset with a canary: its key for slots, the canary's row."""
        pair = HelperKeys.read(self.folder / "south").pair(self.task, COLLUDING_HELPER)
        opened = self.cores[COLLUDING_HELPER].datasets.open(dataset)
        return pair, int(np.flatnonzero(~opened.shares.features.any(axis=1))[0])

    def start(self, dataset: bytes, **settings: Any) -> tuple[JobSpec, StartedJob]:
        """A job at both helpers, and what the first of them says of it; see `spec`."""
        spec = self.spec(dataset, **settings)
        return spec, self.open(spec)

    def open(self, spec: JobSpec) -> StartedJob:
        """What the first helper says of a job that both open."""
        started: StartedJob = self.both(lambda client: client.start_job(spec, self.onnx))[0]
        return started

    def spec(
        self,
        dataset: bytes,
        *,
        rounds: int,
        noise_multiplier: float,
        sampling_rate: float = 1.0,
        epoch_steps: int | None = None,
        carried: int | None = None,
    ) -> JobSpec:
        """A job of a fresh id.

        Poisson samples are public, so that they may be small; the slots of random allocation are secret.
        """
        numerator = round(sampling_rate * 2**32) if epoch_steps is None else 2**32 // epoch_steps
        return job_spec(
            job_id=self.randomness(16),
            task_id=self.task.task_id,
            dataset_id=dataset,
            model_digest=self.model.digest,
            loss=self.loss,
            rounds=rounds,
            sampling_numerator=numerator,
            noise_multiplier=noise_multiplier,
            epoch_steps=epoch_steps,
            is_sample_public=sampling_rate < 1,
            carried=carried,
        )

    @property
    def initial_weights(self) -> bytes:
        """The encoded weights of the model as it is submitted."""
        return weights.encode([weights.quantise(values) for values in self.model.initial_values])

    def shares(self, spec: JobSpec, round_index: int, encoded: bytes | None = None) -> list[AggregateShare]:
        """Both helpers' answers to one round, at the model's initial weights or others."""
        sent = self.initial_weights if encoded is None else encoded
        return self.both(lambda client: client.run_round(spec, round_index, sent, self.model.num_parameters))

    def sums(self, spec: JobSpec) -> NDArray[np.int64]:
        """The noised sums of all rounds of a job, (rounds, parameters)."""
        return np.stack([combine(*self.shares(spec, index)) for index in range(spec.rounds)])


def seal_at(
    clients: Sequence[HelperClient], task: Task, reports: Sequence[Report], randomness: Randomness, **of: Any
) -> bytes:
    """Have both helpers admit all of these reports, and commit them as a dataset; its id."""
    handle = randomness(16)
    sets = [
        client.prepare_dataset(
            task.task_id, handle, [shares_for(list(reports), role)], num_reports=len(reports), **of
        )
        for role, client in enumerate(clients)
    ]
    chosen = sets[0].intersect(sets[1])
    if not chosen.all():
        raise AssertionError("an honest share was dropped")
    dataset = id_of_reports(task.task_id, reports, sets[0].view_tags)
    for client in clients:
        client.commit_dataset(task.task_id, handle, chosen, dataset)
    return dataset


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """In memory where there is such a folder: thousands of durable commits, none of which needs to last."""
    memory = Path("/dev/shm")  # noqa: S108 (a folder of our own inside it)
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def open_site(
    folder: Path | None = None,
    *,
    seed: int,
    shelf: type[RecordedNoise] = RecordedNoise,
    model: bytes | None = None,
    loss: Loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
    **task_settings: Any,
) -> Iterator[Site]:
    """Helpers on two data folders, served on two free ports, with noise from a seed.

    Without a folder they have one that is gone afterwards; budgets hold any job unless settings say less.
    """
    with ExitStack() as stack:
        folder = folder or stack.enter_context(temporary_folder())
        parties = (Party(data=folder / "north"), Party(data=folder / "south"))
        identities = (parties[0].keys.identity, parties[1].keys.identity)
        wide = {"epsilon": 1e6, "collusion_epsilon": 1e6, **task_settings}
        task = canonical.build(Task, settings(helpers=identities, **wide))
        cores = [_core(party, seeded(seed, f"noise of {party.data.name}"), shelf, stack) for party in parties]
        clients = [_serve(core, stack) for core in cores]
        yield Site(
            task=task,
            clients=clients,
            cores=cores,
            model=model or make_model(),
            loss=loss,
            seed=seed,
            folder=folder,
        )


def _core(party: Party, randomness: Stream, shelf: type[RecordedNoise], stack: ExitStack) -> HelperCore:
    ledger = Ledger(open_database(sqlite_url(party.data / "ledger.sqlite3")))
    stack.callback(ledger.close)
    core = HelperCore(
        data=party.data,
        keys=party.keys,
        floors=OPEN_FLOORS,
        ledger=ledger,
        executor=LocalExecutor(1),
        clock=lambda: NOW,
        engine_for=choose_engine,
    )
    core.jobs._noise = shelf(
        randomness
    )  # the one thing that is not as in production: where its bytes come from, and who sees them
    return core


def _serve(core: HelperCore, stack: ExitStack) -> HelperClient:
    address = stack.enter_context(served(HelperService(core, ReleaseGrid(step_s=0.0005))))
    return stack.enter_context(HelperClient(address, None, DEADLINE_S))


class Colluder:
    """An ad server that has the keys of one helper, and looks at one dataset."""

    def __init__(self, site: Site, dataset: bytes) -> None:
        self._site = site
        self._dataset = dataset
        self._pair, self._row = site.of_colluder(dataset)

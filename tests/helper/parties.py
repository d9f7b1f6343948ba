"""Two helpers on two data folders, and the ad server's and the browsers' part of each step, for the tests of
the helper."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnx import helper as make

from helper.core import HelperCore
from helper.datasets.preparing import PreparedTotals
from helper.executors.local import LocalExecutor
from helper.gradient.engine import Batch, Interrupt, MaskedSum, never
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import key_of
from helper.releases.answering import Call
from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES, Floors
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.model import weights
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import from_signed, multiply, total
from maskedlark.privacy.clip import Clip
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.dataset import AdmittedSet, ShareForHelper
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.report import Example
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.runtime.database import open_database
from maskedlark.runtime.objects import ObjectStore
from tests.builders import NOW, examples, id_of_reports, job_spec, joined_sets, settings, shares_for

FLOORS = Floors(min_batch_size=2, max_epsilon=1e6, max_collusion_epsilon=1e6, is_noise_optional=True)
NO_WORKERS = 1


class FakeEngine:
    """f(features, label) = (f_0 + label, f_1 + label, ..., label) in units.

    Exact and obvious; the weights are only digested.
    """

    path = "exact"
    reason = "a fake"
    held_bytes = 0

    def __init__(self, num_values: int, clip: Clip) -> None:
        self.num_values = num_values
        self.clip = clip
        self.calls = 0

    def with_clip(self, clip: Clip) -> Self:
        other = copy(self)
        other.clip = clip
        return other

    def round_bytes(self, records: int, labels: int) -> int:
        return 8 * records * labels * self.num_values

    def masked_sum(
        self, tensors: tuple[weights.QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        self.calls += 1
        values = fake_values(batch.features, batch.labels, self.num_values)
        products = multiply(from_signed(values), np.broadcast_to(batch.mask_shares[:, :, None], values.shape))
        return MaskedSum(
            vector=total(products.reshape(-1, self.num_values)),
            values_digest=sha256(values.tobytes() + weights.encode(tensors)).digest(),
            sensitivity=self.clip.sensitivity,
        )


def fake_values(
    features: NDArray[np.uint8], labels: NDArray[np.uint32], num_values: int
) -> NDArray[np.int64]:
    """(n, d), (n, L) -> (n, L, P)."""
    padded = np.zeros((len(features), num_values), np.int64)
    padded[:, : features.shape[1]] = features
    return padded[:, None, :] + labels[:, :, None].astype(np.int64)


def fake_engine_for(model: Model, loss: Loss, clip: Clip, num_classes: int | None) -> FakeEngine:
    return FakeEngine(model.num_parameters, clip)


@dataclass(kw_only=True)
class Party:
    """One helper's operator.

    Its folder and settings, from which any number of cores can be opened, one after the other.
    """

    data: Path
    floors: Floors = FLOORS
    now: float = NOW

    def __post_init__(self) -> None:
        HelperKeys.generate(name=self.data.name, suite=HpkeSuite.X25519_AES128GCM).write(self.data)

    @property
    def keys(self) -> HelperKeys:
        return HelperKeys.read(self.data)

    def open(
        self,
        *,
        ledger_type: type[Ledger] = Ledger,
        engine_for: Callable[..., Any] = fake_engine_for,
        max_preparing_bytes: int = PREPARED_BYTES,
        max_held_bytes: int = MOST_HELD_BYTES,
        segments: ObjectStore | None = None,
        floors: Floors | None = None,
    ) -> HelperCore:
        return HelperCore(
            data=self.data,
            keys=self.keys,
            floors=floors or self.floors,
            ledger=ledger_type(open_database(sqlite_url(self.data / "ledger.sqlite3"))),
            executor=LocalExecutor(NO_WORKERS),
            clock=lambda: self.now,
            engine_for=engine_for,
            max_preparing_bytes=max_preparing_bytes,
            max_held_bytes=max_held_bytes,
            segments=segments,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the ad server knows after both helpers prepared the same reports."""

    handle: bytes
    admitted: tuple[AdmittedSet, AdmittedSet]
    chosen: NDArray[np.bool_]
    dataset_id: bytes

    @property
    def bits(self) -> bytes:
        return np.packbits(self.chosen, bitorder="little").tobytes()


class Scene:
    """Both helpers, a task that both signed, and an ad server that does everything right unless a test does
    otherwise."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.parties = (Party(data=folder / "north"), Party(data=folder / "south"))
        self.cores = self.open()
        self.task = make_task(self.parties, **changes)
        self.task_id = self.task.task_id
        self.bundle = self.register(self.task)
        self.sealer = Sealer(self.bundle, now=NOW)

    def open(self, **how: Any) -> tuple[HelperCore, HelperCore]:
        first, second = (party.open(**how) for party in self.parties)
        return first, second

    def restart(self, **how: Any) -> None:
        self.cores = self.open(**how)

    def register(self, task: Task) -> TaskBundle:
        encoded = canonical.encode(task)
        first, second = (core.tasks.register(encoded, None) for core in self.cores)
        key_lists = (self.cores[0].status().key_list, self.cores[1].status().key_list)
        return TaskBundle(task=task, signatures=(first, second), key_lists=key_lists)

    def tenant(self, origin: str, **changes: Any) -> Self:
        """Another ad server of the same helpers, with a task of its own."""
        other = copy(self)
        other.task = make_task(self.parties, origin=origin, **changes)
        other.task_id = other.task.task_id
        other.bundle = other.register(other.task)
        other.sealer = Sealer(other.bundle, now=NOW)
        return other

    def examples(self, count: int, seed: int = 0) -> list[Example]:
        return examples(self.task, count, seeded(seed, "examples of a scene"))

    def plain_sum(self, count: int) -> list[int]:
        """What the examples of `count` reports sum to, computed in the clear."""
        made = self.examples(count)
        features = np.stack([example.features for example in made])
        labels = np.array([[int(example.label or 0)] for example in made], np.uint32)
        return [int(value) for value in fake_values(features, labels, NUM_VALUES).sum(axis=(0, 1))]

    def reports(self, given: int | list[Example], seed: int = 0) -> list[Report]:
        randomness = seeded(seed, "reports of a scene")
        made = self.examples(given, seed) if isinstance(given, int) else given
        return [self.sealer.report(example, unix_s=NOW, randomness=randomness) for example in made]

    def prepare(self, reports: Sequence[Report], *, handle: bytes = b"h" * 16, chunk: int = 1000) -> Prepared:
        admitted = []
        for role, core in enumerate(self.cores):
            incoming = shares_for(list(reports), role)
            with core.datasets.prepare(self.task_id, handle, None) as preparation:
                admits, totals = admitted_in_chunks(preparation, incoming, chunk)
            assert totals.received == len(reports)
            admitted.append(admits)
        chosen = admitted[0].intersect(admitted[1])
        return Prepared(
            handle=handle,
            admitted=(admitted[0], admitted[1]),
            chosen=chosen,
            dataset_id=self.id_of(reports, chosen),
        )

    def id_of(self, reports: Sequence[Report], chosen: NDArray[np.bool_]) -> bytes:
        """The id of a dataset of reports that no dataset used yet."""
        with self.cores[0].datasets.prepare(self.task_id, b"t" * 16, None) as preparation:
            view_tags = preparation.add(shares_for(list(reports), 0)).view_tags
        return id_of_reports(self.task_id, list(compress(reports, chosen)), view_tags[chosen])

    def commit(self, prepared: Prepared) -> bytes:
        for core in self.cores:
            size = core.datasets.commit(
                self.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None
            )
            assert size == prepared.chosen.sum()
        return prepared.dataset_id

    def seal(self, given: int | list[Example] = 20, seed: int = 0) -> bytes:
        return self.commit(self.prepare(self.reports(given, seed)))

    def job(self, dataset: bytes, **changes: Any) -> JobSpec:
        spec = job_spec(
            task_id=self.task_id,
            dataset_id=dataset,
            model_digest=parse(MODEL, num_features=self.task.num_features).digest,
            rounds=10,
        )
        return replace(spec, **changes)

    def start(self, spec: JobSpec) -> None:
        for core in self.cores:
            core.jobs.start(canonical.encode(spec), MODEL, ASKED)

    def run(self, spec: JobSpec, round_index: int, encoded: bytes | None = None) -> NDArray[np.int64]:
        answers = [
            core.jobs.at_work(key_of(spec), None).answer(round_index, encoded or WEIGHTS, ASKED)
            for core in self.cores
        ]
        first, second = (AggregateShare.decode(answer, NUM_VALUES) for answer in answers)
        return combine(first, second)

    def answer(self, role: int, spec: JobSpec, round_index: int, encoded: bytes | None = None) -> bytes:
        return (
            self.cores[role].jobs.at_work(key_of(spec), None).answer(round_index, encoded or WEIGHTS, ASKED)
        )


def admitted_in_chunks(
    preparation: Any, incoming: list[ShareForHelper], chunk: int
) -> tuple[AdmittedSet, PreparedTotals]:
    """Send shares in chunks: what is admitted of all, and the totals."""
    parts = [preparation.add(incoming[start : start + chunk]) for start in range(0, len(incoming), chunk)]
    totals: PreparedTotals = preparation.finish()
    return joined_sets(parts, totals.dropped), totals


def make_task(parties: tuple[Party, Party], **changes: Any) -> Task:
    identities = (parties[0].keys.identity, parties[1].keys.identity)
    return canonical.build(Task, settings(helpers=identities, **changes))


def make_model(num_features: int = 4, outputs: int = 1) -> bytes:
    """A dense layer, as an ONNX file."""
    tensors = [
        make.make_tensor("w", TensorProto.FLOAT, (num_features, outputs), [0.5] * num_features * outputs),
        make.make_tensor("b", TensorProto.FLOAT, (outputs,), [0.25] * outputs),
    ]
    graph = make.make_graph(
        [make.make_node("Gemm", ["x", "w", "b"], ["z"])],
        "dense",
        [make.make_tensor_value_info("x", TensorProto.FLOAT, ("n", num_features))],
        [make.make_tensor_value_info("z", TensorProto.FLOAT, ("n", outputs))],
        tensors,
    )
    model: onnx.ModelProto = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    return model.SerializeToString()


def make_weights(scale: float, model: bytes, num_features: int = 4) -> bytes:
    parsed = parse(model, num_features=num_features)
    return weights.encode([weights.quantise(value * np.float32(scale)) for value in parsed.initial_values])


ASKED = Call(caller=None)
MODEL = make_model()
WEIGHTS = make_weights(1.0, MODEL)
OTHER_WEIGHTS = make_weights(0.5, MODEL)
NUM_VALUES = 5

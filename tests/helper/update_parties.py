"""Two helpers and an ad server that seals and releases federated rounds, for tests."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from helper.datasets.preparing import PreparedTotals
from helper.releases.answering import Call
from maskedlark import canonical
from maskedlark.randomness import seeded
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.update import UpdateRound, UpdateSpec
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.reports.updates import UpdateVector
from maskedlark.reports.upload import Report
from tests.builders import NOW, id_of_reports, shares_for
from tests.helper.parties import Party, Scene, admitted_in_chunks, make_task
from tests.update_builders import FORM, random_vector, update_job, update_round, update_settings


class UpdateScene(Scene):
    """Both helpers, a federated task, and an ad server that does everything right unless a test does
    otherwise."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.parties = (Party(data=folder / "north"), Party(data=folder / "south"))
        self.cores = self.open()
        self.task = make_task(self.parties, **update_settings(**changes))
        self.task_id = self.task.task_id
        self.bundle = self.register(self.task)
        self.updates = UpdateSealer(self.bundle, now=NOW)

    def tenant(self, origin: str, **changes: Any) -> Self:
        """Another ad server of the same helpers, with a federated task of its own."""
        other = copy(self)
        other.task = make_task(self.parties, **update_settings(origin=origin, **changes))
        other.task_id = other.task.task_id
        other.bundle = other.register(other.task)
        other.updates = UpdateSealer(other.bundle, now=NOW)
        return other

    def round(self, index: int = 0, **changes: Any) -> UpdateRound:
        return update_round(self.task, index, **{"job": update_job(self.task), **changes})

    def vectors(self, count: int, seed: int = 0) -> list[UpdateVector]:
        clip = self.round().clip(self.task)
        return [random_vector(FORM, clip, 100 * seed + device) for device in range(count)]

    def sealed(self, one: UpdateRound, vectors: Sequence[UpdateVector], seed: int = 0) -> list[Report]:
        randomness, clip = seeded(seed, "updates of a scene"), one.clip(self.task)
        return [
            self.updates.report(one.round_id, clip, vector, unix_s=NOW, randomness=randomness)
            for vector in vectors
        ]

    def prepare_round(
        self, one: UpdateRound, sealed: Sequence[Report], handle: bytes = b"h" * 16, chunk: int = 3
    ) -> tuple[tuple[AdmittedSet, AdmittedSet], list[PreparedTotals]]:
        admitted, totals = [], []
        for role, core in enumerate(self.cores):
            incoming = shares_for(list(sealed), role)
            of_round = core.datasets.prepare_round(self.task_id, handle, canonical.encode(one), None)
            with of_round as preparation:
                admits, total = admitted_in_chunks(preparation, incoming, chunk)
            admitted.append(admits)
            totals.append(total)
        return (admitted[0], admitted[1]), totals

    def seal_round(self, one: UpdateRound, sealed: Sequence[Report], handle: bytes = b"h" * 16) -> bytes:
        admitted, _ = self.prepare_round(one, sealed, handle)
        chosen = admitted[0].intersect(admitted[1])
        expected = self.round_dataset_id(sealed, admitted[0], chosen)
        for core in self.cores:
            bits = np.packbits(chosen, bitorder="little").tobytes()
            core.datasets.commit(self.task_id, handle, bits, expected, None)
        return expected

    def round_dataset_id(
        self, sealed: Sequence[Report], admitted: AdmittedSet, chosen: NDArray[np.bool_]
    ) -> bytes:
        return id_of_reports(self.task_id, list(compress(sealed, chosen)), admitted.view_tags[chosen])

    def release(self, one: UpdateRound, of_dataset: bytes) -> NDArray[np.int64]:
        spec = UpdateSpec(dataset_id=of_dataset, round=one)
        answers = [core.queries.answer(spec, lambda _: b"", Call(caller=None)).answer for core in self.cores]
        first, second = (AggregateShare.decode(answer, FORM.length) for answer in answers)
        return combine(first, second)


def other_content(one: UpdateRound) -> UpdateRound:
    """The same round of the same job, for other weights."""
    return replace(one, content_digest=b"o" * 32)

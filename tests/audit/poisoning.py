"""Browsers that poison and a helper that lies about proofs, on real helpers over gRPC: what they change and
what they learn.

Two ad servers train and measure with the same honest people. To one of them come poisoned reports too, one in
a hundred: masks of weight 1,000 and bits that spell values out of range. With proofs its weights and cells
must be those of the other, to the bit.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adserver.collecting.sealing import DatasetSealer
from adserver.measuring.measurer import Measurer
from adserver.measuring.request import Request
from adserver.peers.client import HelperClient
from adserver.records.training_plan import TrainingPlan
from adserver.store.job_folder import JobFolder
from adserver.store.queries import QueryStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from adserver.training.trainer import Checkpoint
from maskedlark.errors import ReportReason
from maskedlark.randomness import below, seeded
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.reports.proofs.proving import Binding
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.upload import Report
from tests.audit.part import Part
from tests.audit.site import Site, open_site, temporary_folder
from tests.builders import NOW, job_spec, random_features, split
from tests.e2e.small_adserver import AdServer, Diverted
from tests.maskedlark.reports.sealed import sealed
from tests.one_proof import prove, secret_elements
from tests.training_plans import training_plan

PEOPLE = 200
POISONED = 2
ROUNDS = 4
MEASUREMENT: dict[str, Any] = {
    "min_cell_count": 2,
    "values": [
        {"name": "spend", "low": 0, "high": 100, "bucket_starts": [0, 10, 50]},
        {"name": "click", "low": 0, "high": 1},
    ],
    "keys": [{"name": "campaign", "size": 4}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an ad server has in the end.

    Attributes:
        masters: The trained weights.
        cells: What a query of all values by group says.
        dropped: By reason, at both helpers.
        size: Reports in the dataset.
    """

    masters: list[bytes]
    cells: list[tuple[tuple[str, ...], tuple[float, ...]]]
    dropped: tuple[Counter[ReportReason], Counter[ReportReason]]
    size: int


def run(
    folder: Path, *, poisoned: int, proof: bool = True, between: Callable[[HelperClient], Any] | None = None
) -> Outcome:
    """Seal, train and measure with the same people, and so many poisoned reports beside them.

    Args:
        folder: For the parties' data.
        poisoned: How many reports lie.
        proof: Whether the task's reports prove their form.
        between: Puts something between helper 1 and the ad server.
    """
    with open_site(
        folder / "helpers", seed=3, num_features=4, mechanism="none", measurement=MEASUREMENT, proof=proof,
        epsilon=1e5, collusion_epsilon=1e5, delta=1e-6,
    ) as site:  # fmt: skip
        second = between(site.clients[1]) if between else site.clients[1]
        server = AdServer(folder / "adserver", site, Diverted(client=site.clients[1]))
        TaskStore(server.engine).add(site.bundle, created_at=NOW)
        people = [
            site.sealer.report(person(n), unix_s=NOW, randomness=seeded(n, "person")) for n in range(PEOPLE)
        ]
        lies = [poison(site, number) for number in range(poisoned)]
        ReportStore(server.engine).add([*lies, *people])
        dataset = DatasetSealer(
            engine=server.engine,
            helpers=(site.clients[0], second),
            task=site.task,
            clock=lambda: NOW,
            randomness=seeded(1, "handles"),
        ).seal()
        assert dataset.dataset_id is not None
        plan = plan_for(site, dataset.dataset_id, dataset.size)
        server.run(plan)
        stored = JobFolder(server.data, plan.job.job_id).checkpoint()
        assert stored is not None
        result = Measurer(
            helpers=(site.clients[0], site.clients[1]),
            task=site.task,
            dataset=dataset,
            store=QueryStore(server.engine),
            clock=lambda: NOW,
            randomness=seeded(2, "queries"),
        ).measure(
            Request(
                values=("spend", "click", "count"),
                histograms=("spend",),
                group_by=("campaign",),
                is_rolled_up=True,
            )
        )
        server.engine.dispose()
        return Outcome(
            masters=[values.tobytes() for values in Checkpoint.decode(stored).values()],
            cells=[(row.group, tuple(one.value for one in row.estimates)) for row in result.rows],
            dropped=dataset.dropped,
            size=dataset.size,
        )


def person(number: int) -> Example:
    """An honest person."""
    drawn = seeded(number, "honest person")
    label, campaign, spend, click = (int(below(bound, 1, drawn)[0]) for bound in (2, 4, 101, 2))
    measured = MeasuredValues(keys=(campaign,), values=(spend, click))
    return Example(features=random_features(4, drawn), label=float(label), measured=measured)


def poison(site: Site, number: int) -> Report:
    """A report of weight 1,000, or one whose values' bits are all 1,000; with the best proof that can be made
    of it.
    """
    task, drawn = site.task, seeded(number, "poison")
    report_id = drawn(16)
    honest = split(task, person(10_000 + number), drawn, report_id)
    if not task.proof:
        return sealed(site.bundle, [heavier(site, honest[0]), honest[1]], report_id)
    shape = task.proof_shape
    assert shape is not None
    view = honest.share_0[: task.view_length]
    weight = 1_000 if number % 2 == 0 else 1
    bits = [1] * sum(shape.polynomials) if weight != 1 else [1_000] * sum(shape.polynomials)
    elements = secret_elements(shape, [[0, weight], [1, 0, 0]], bits, drawn)
    binding = Binding(task_id=task.task_id, report_id=report_id, view=view)
    proof = prove(shape, binding, elements, drawn)
    return sealed(site.bundle, [proof.encode(binding, role) for role in (0, 1)], report_id)


def heavier(site: Site, plaintext: bytes) -> bytes:
    """A plaintext without a proof whose first mask is 40 more: the sum of 200 reports can reach as much."""
    at = site.task.view_length
    mask = (int.from_bytes(plaintext[at : at + 8], "little") + 40) % (2**64 - 2**32 + 1)
    return plaintext[:at] + mask.to_bytes(8, "little") + plaintext[at + 8 :]


def plan_for(site: Site, dataset: bytes, size: int) -> TrainingPlan:
    """A few rounds of all reports."""
    spec = job_spec(
        task_id=site.task.task_id,
        dataset_id=dataset,
        model_digest=site.model.digest,
        loss=site.loss,
        rounds=ROUNDS,
    )
    return training_plan(site.task, spec, records=size, learning_rate=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the audit says of poisoning.

    Attributes:
        changed_weights: Whether poisoned reports changed a bit of the trained weights.
        changed_cells: Whether they changed a cell.
        dropped: How many of them were dropped as not proven.
        changed_without_proofs: Whether they change the weights of a task without proofs: that the attack is
            one.
        wrong_tags_learn_nothing: Whether a helper that sends wrong tags only loses the reports that it lied
            about.
    """

    changed_weights: bool
    changed_cells: bool
    dropped: int
    changed_without_proofs: bool
    wrong_tags_learn_nothing: bool

    @property
    def is_well(self) -> bool:
        """Whether all claims hold, and the attack was one."""
        return (
            not (self.changed_weights or self.changed_cells)
            and self.dropped == POISONED
            and self.changed_without_proofs
            and self.wrong_tags_learn_nothing
        )


def part(_seed: int) -> Part:
    """The part of the audit; what comes out is exact, so it has seeds of its own."""
    found = examine()
    return Part(claims={"poison_changes_nothing": found.is_well}, figures={"poisoning": asdict(found)})


def examine() -> Finding:
    """All runs, in folders that are gone afterwards."""
    with temporary_folder() as folder:
        clean = run(folder / "clean", poisoned=0)
        poisoned = run(folder / "poisoned", poisoned=POISONED)
        bare, spoilt = (run(folder / f"bare {n}", poisoned=n, proof=False) for n in (0, POISONED))
        lied = run(folder / "lied", poisoned=0, between=LyingAboutProofs)
    only_lies = Counter({ReportReason.NOT_PROVEN: -(-PEOPLE // 2)})
    return Finding(
        changed_weights=poisoned.masters != clean.masters,
        changed_cells=poisoned.cells != clean.cells,
        dropped=poisoned.dropped[0][ReportReason.NOT_PROVEN],
        changed_without_proofs=spoilt.masters != bare.masters and spoilt.size > bare.size,
        wrong_tags_learn_nothing=lied.dropped == (only_lies, only_lies) and lied.size == PEOPLE // 2,
    )


class LyingAboutProofs:
    """Helper 1 sends wrong tags for every other report that it admits."""

    def __init__(self, client: HelperClient) -> None:
        self._client = client
        self.lied = 0

    def prepare_dataset(self, *given: Any, **named: Any) -> AdmittedSet:
        """What helper 1 says, with half of its tags changed."""
        told = self._client.prepare_dataset(*given, **named)
        tags = told.view_tags.copy()
        tags[::2] ^= np.uint8(1)
        self.lied = len(tags[::2])
        return AdmittedSet(is_admitted=told.is_admitted, view_tags=tags, dropped=told.dropped)

    def commit_dataset(self, *given: Any) -> Any:
        """Passed on."""
        return self._client.commit_dataset(*given)

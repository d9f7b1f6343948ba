"""Queries, discoveries and evaluations look during their work whether anybody waits.

Who has gone is not charged.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helper.gradient.engine import Interrupt
from helper.gradient.scoring import score
from helper.ledger.records import ReleaseKey
from helper.releases.answering import Call
from helper.releases.queries import AnsweredQuery
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model import weights
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.releases import evaluation, grouping
from maskedlark.releases.evaluation import count_cells
from maskedlark.releases.grouping import sum_groups
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import Axis, Measure
from maskedlark.reports.report import Example, MeasuredValues
from tests.helper.parties import Scene, make_model
from tests.maskedlark.query_specs import discovery, query
from tests.maskedlark.query_specs import evaluation as evaluation_of
from tests.measured import SHOP


class Gone:
    """An interrupt that counts its calls, and raises from the n-th on."""

    def __init__(self, at: int = 1 << 30) -> None:
        self.calls = 0
        self._at = at

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= self._at:
            raise JobRefused(JobReason.CANCELLED, "gone")


class Asked:
    """One helper with a dataset, and the three kinds of questions about it, with no noise.

    Every run makes equal calls.
    """

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder, measurement={**SHOP, "min_cell_count": 2}, min_batch_size=2)
        zeros = np.zeros(self.scene.task.num_features, np.uint8)
        made = [
            Example(features=zeros, label=1.0, measured=MeasuredValues(keys=(n % 5, n % 3, 0), values=(1, n)))
            for n in range(30)
        ]
        self.dataset = self.scene.seal(made)
        self.queries = self.scene.cores[0].queries

    def query(self, interrupt: Interrupt) -> AnsweredQuery:
        measures, axes = (Measure(value="count", scale=1 << 16),), (Axis(key="place", size=3),)
        named = {"dataset_id": self.dataset, "measures": measures, "group_by": axes, "levels": (0, 1)}
        return self._answered(query(self.scene, **named), interrupt)

    def discovery(self, interrupt: Interrupt) -> AnsweredQuery:
        keys = ("campaign", "place")
        spec = discovery(self.scene, dataset_id=self.dataset, keys=keys, max_codes=6)
        return self._answered(spec, interrupt)

    def evaluation(self, interrupt: Interrupt) -> AnsweredQuery:
        onnx = make_model()
        model = parse(onnx, num_features=self.scene.task.num_features)
        held = weights.digest(weights.encode([weights.quantise(values) for values in model.initial_values]))
        digests = {"model_digest": model.digest, "weights_digest": held}
        spec = evaluation_of(self.scene, dataset_id=self.dataset, num_bins=20, **digests)
        return self._answered(spec, interrupt, onnx)

    def _answered(self, spec: AnyQuery, interrupt: Interrupt, beside: bytes = b"") -> AnsweredQuery:
        return self.queries.answer(spec, lambda _: beside, Call(caller=None, check_awaited=interrupt))


ASK: dict[str, Callable[[Asked, Interrupt], AnsweredQuery]] = {
    "query": Asked.query,
    "discovery": Asked.discovery,
    "evaluation": Asked.evaluation,
}


@pytest.mark.parametrize("kind", ASK)
def test_wherever_it_is_cancelled_nothing_is_charged_and_it_can_be_asked_again(
    tmp_path: Path, kind: str
) -> None:
    asked, whole = Asked(tmp_path / "one"), Gone()
    ASK[kind](Asked(tmp_path / "twin"), whole)
    assert whole.calls >= 4  # before the work and before the charge, and at least twice between
    for at in range(1, whole.calls + 1):
        gone = Gone(at)
        with pytest.raises(JobRefused, match="gone"):
            ASK[kind](asked, gone)
        assert gone.calls == at  # and nothing went on after it
        assert asked.queries.ledger.query(ReleaseKey(asked.scene.task_id, b"q" * 16)) is None
    assert ASK[kind](asked, Gone()).answer
    assert asked.queries.ledger.query(ReleaseKey(asked.scene.task_id, b"q" * 16)) is not None


def test_scoring_looks_at_least_once_every_512_records() -> None:
    model, gone = parse(make_model(), num_features=4), Gone()
    tensors = tuple(weights.quantise(values) for values in model.initial_values)
    score(
        model,
        Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        tensors,
        np.zeros((5000, 4), np.uint8),
        10,
        interrupt=gone,
    )
    assert gone.calls >= 5000 / 512


def test_counting_and_grouping_look_at_every_block_and_give_the_same_bits_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(5)
    cells, shares = random.integers(0, 7, (1000, 2)), random.integers(0, 1 << 63, (1000, 2), np.uint64)
    counted, grouped = count_cells(cells, shares, 7), sum_groups(cells[:, 0], shares, (1, 0), 7)
    monkeypatch.setattr(evaluation, "_BLOCK", 64)
    monkeypatch.setattr(grouping, "_BLOCK", 64)
    counting, grouping_calls = Gone(), Gone()
    assert count_cells(cells, shares, 7, counting).tolist() == counted.tolist()
    assert sum_groups(cells[:, 0], shares, (1, 0), 7, grouping_calls).tolist() == grouped.tolist()
    assert (counting.calls, grouping_calls.calls) == (2 * 16, 16)

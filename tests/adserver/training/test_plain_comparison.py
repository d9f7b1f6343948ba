"""A private model next to training in the clear: the same rows, the panel alone, and what they tell."""

from dataclasses import replace

import numpy as np
import pytest

from adserver.training import plain_twin
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate, predict
from adserver.training.linear_model import cross_fit_linear
from adserver.training.paired_comparison import compare_scores
from adserver.training.plain_comparison import compare_plain
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

WIDTH = 4
LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
MODEL = dense_network([WIDTH, 8, 1], "relu", seed=2, final="linear")
WIDE = dense_network([WIDTH, 8, 3], "relu", seed=2, final="linear")


@pytest.fixture(autouse=True)
def few_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (0.03,))


def records(count: int, seed: int) -> EvalSet:
    """Label 1 where the first byte is small, which one label in ten says wrongly."""
    random = np.random.default_rng(seed)
    features = random.integers(0, 256, (count, WIDTH), np.uint8)
    is_wrong = random.random(count) < 0.1
    return EvalSet(features=features, labels=((features[:, 0] < 100) ^ is_wrong).astype(np.int64))


def test_a_private_model_is_compared_with_both_on_the_same_rows() -> None:
    panel = records(200, 2)
    found = compare_plain(MODEL, MODEL, LOGITS, records(600, 1), panel, encoder=None)
    assert found.private == evaluate(MODEL, panel.features, panel.labels, LOGITS)
    scores, others = (predict(one, panel.features) for one in (MODEL, found.plain.model))
    names = ("the private model", "plain training of a linear model")
    assert found.by_plain == compare_scores(scores, others, panel.labels, names=names)
    assert found.alone is not None
    assert found.by_alone is not None
    assert found.by_alone.names == ("the private model", "the panel alone")
    assert found.by_plain.high < 0  # MODEL has learned nothing
    assert found.verdict.startswith("The private model ranks 0.")
    assert "than plain training of a linear model" in found.verdict
    # What the table lists above it is of the same network, which is compared too
    assert found.by_network is not None
    assert found.by_network.other_value == pytest.approx(found.network.auc)
    assert f"minus plain training of the same network: {found.by_network.difference:+.4f}" in repr(found)
    for told in (repr(found), found._repr_html_()):
        assert f"{found.network.auc:.4f}" in told
        assert found.linear is not None
        assert f"{found.linear.auc:.4f}" in told
        assert found.by_alone.describe_difference() in told
        assert "95 %, on the same 200 rows" in told


def test_a_network_without_layers_leaves_the_panel_alone_to_the_linear_model() -> None:
    panel = records(100, 2)
    found = compare_plain(MODEL, MODEL, LOGITS, records(100, 1), panel, encoder=None, is_linear=True)
    assert found.alone == cross_fit_linear(None, LOGITS, panel, outputs=1)


def test_progress_counts_each_training_once() -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> None:
        seen.append((done, of))

    compare_plain(MODEL, MODEL, LOGITS, records(50, 1), records(50, 2), encoder=None, progress=progress)
    # RATES is shorter here than it was when the counts were made
    assert [done for done, _ in seen] == list(range(len(plain_twin.DECAYS) + 2))
    assert {of for _, of in seen} == {plain_twin.TWIN_TRAININGS + plain_twin.PANEL_TRAININGS}


def test_more_classes_are_paired_by_accuracy_and_numbers_not_at_all() -> None:
    random = np.random.default_rng(3)
    features = random.integers(0, 256, (200, WIDTH), np.uint8)
    panel = EvalSet(features=features, labels=features[:, 0].astype(np.int64) // 86)
    found = compare_plain(WIDE, WIDE, Loss.CROSS_ENTROPY, panel, panel, encoder=None)
    assert found.by_plain is not None
    assert found.by_plain.metric == "accuracy"
    assert "is right 0." in found.verdict
    of_numbers = compare_plain(MODEL, MODEL, Loss.MSE, panel, panel, encoder=None)
    assert (of_numbers.by_plain, of_numbers.by_alone, of_numbers.verdict) == (None, None, "")
    assert of_numbers.alone is not None
    assert "plain training" in repr(of_numbers)


def test_rows_of_one_person_are_on_no_two_sides_of_a_division() -> None:
    panel, people = records(100, 2), np.arange(100) // 3
    named = replace(panel, people=people)
    for held, others in named.folds():
        assert others.people is not None
        assert not set(people[held]) & set(others.people)
        assert len(held) + len(others) == 100
        assert 18 <= len(held) <= 22
    assert sorted(row for held, _ in named.folds() for row in held) == list(range(100))
    found = compare_plain(MODEL, MODEL, LOGITS, records(100, 1), named, encoder=None)
    assert found.by_alone is not None
    assert "Several rows of one person" in found.verdict
    # Nothing of whose rows they are, and nothing to divide
    assert (
        "Several rows"
        not in compare_plain(MODEL, MODEL, LOGITS, records(100, 1), panel, encoder=None).verdict
    )
    of_four = replace(panel, people=np.arange(100) % 4)
    found = compare_plain(MODEL, MODEL, LOGITS, records(100, 1), of_four, encoder=None)
    assert (found.alone, found.by_alone) == (None, None)


def test_rows_that_do_not_tell_leave_the_figures_and_a_remark() -> None:
    few = records(30, 2)
    one_class = EvalSet(features=few.features, labels=np.zeros(30, np.int64))
    found = compare_plain(MODEL, MODEL, LOGITS, records(100, 1), one_class, encoder=None)
    assert (found.by_plain, found.by_alone, found.verdict) == (None, None, "")
    assert len(found.remarks) == 2
    assert "of 30 rows 0 are of class 1" in found.remarks[0]
    assert found.remarks[0] in repr(found)

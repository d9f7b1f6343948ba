"""The plain twin: it learns what can be learned, and the panel chooses."""

import numpy as np
import pytest

from adserver.training import plain_twin
from adserver.training.eval_set import FOLDS, EvalSet
from adserver.training.inference import evaluate
from adserver.training.plain_twin import cross_fit_panel, train_plain_twin
from maskedlark.errors import JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

WIDTH = 4
LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
MODEL = dense_network([WIDTH, 8, 1], "relu", seed=2, final="linear")


def records(count: int, seed: int) -> EvalSet:
    """Label 1 where the first byte is small."""
    features = np.random.default_rng(seed).integers(0, 256, (count, WIDTH), np.uint8)
    return EvalSet(features=features, labels=(features[:, 0] < 100).astype(np.int64))


def test_it_learns_and_its_figures_are_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (0.01, 0.1))
    panel = records(200, 2)
    twin = train_plain_twin(MODEL, LOGITS, records(600, 1), panel)
    assert twin.evaluation == evaluate(twin.model, panel.features, panel.labels, LOGITS)
    assert twin.evaluation.auc is not None
    assert twin.evaluation.auc > 0.95
    assert train_plain_twin(MODEL, LOGITS, records(600, 1), panel) == twin


def test_the_panel_chooses_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (0.1,))
    rows = records(20, 1)
    against = EvalSet(features=rows.features, labels=1 - rows.labels)  # what is learned is wrong there
    assert train_plain_twin(MODEL, LOGITS, rows, against).epochs < 5
    assert train_plain_twin(MODEL, LOGITS, rows, rows).epochs > 100


def test_a_rate_that_diverges_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (1e6, 0.03))
    twin = train_plain_twin(MODEL, Loss.MSE, records(300, 1), records(99, 2))
    assert twin.learning_rate == 0.03
    assert twin.epochs > 0


def test_records_of_another_width_are_refused() -> None:
    panel = records(10, 2)
    narrow = EvalSet(features=panel.features[:, :2], labels=panel.labels)
    with pytest.raises(JobRefused, match="the model takes 4"):
        train_plain_twin(MODEL, LOGITS, records(10, 1), narrow)


def test_each_row_of_the_panel_is_scored_by_training_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has features that no other row says anything about, and a label by chance."""
    monkeypatch.setattr(plain_twin, "RATES", (0.03,))
    random = np.random.default_rng(4)
    features = random.integers(0, 256, (60, 40), np.uint8)
    panel = EvalSet(features=features, labels=random.integers(0, 2, 60))
    wide = dense_network([40, 32, 1], "relu", seed=2, final="linear")
    by_heart = train_plain_twin(wide, LOGITS, panel, panel).evaluation.auc
    alone = cross_fit_panel(wide, LOGITS, panel)
    assert by_heart == 1.0
    assert alone.evaluation.auc is not None
    assert alone.evaluation.auc < 0.75


def test_a_panel_alone_shows_what_can_be_learned_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (1e6, 0.03))
    alone = cross_fit_panel(MODEL, LOGITS, records(200, 2))
    assert alone.evaluation.auc is not None
    assert alone.evaluation.auc > 0.9
    assert alone.learning_rate == 0.03
    assert alone.epochs > 0


def test_a_panel_too_small_to_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="has rows of 4 people: expected at least 5"):
        cross_fit_panel(MODEL, LOGITS, records(FOLDS - 1, 2))

"""A linear model reaches what a ridge logistic regression of another library reaches."""

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from adserver.training import plain_twin
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate
from adserver.training.linear_model import can_fit, cross_fit_linear, fit_linear
from adserver.training.plain_twin import cross_fit_panel
from maskedlark.encoding.encoder import CategoryColumn, Encoder, NumberColumn
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.table_network import table_network

LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
NUMBERS = 8
ENCODER = Encoder(
    columns=(
        CategoryColumn(name="word", first=1, categories=("a", "b", "c"), missing=0),
        *(
            NumberColumn(name=f"n{at}", first=1, edges=tuple(map(float, range(254))), missing=0)
            for at in range(NUMBERS)
        ),
    )
)


def records(count: int, seed: int) -> EvalSet:
    """A weak straight line in two of many numbers of 255 values, and a word."""
    random = np.random.default_rng(seed)
    words = random.integers(0, 4, (count, 1))
    numbers = random.integers(1, 256, (count, NUMBERS))
    logits = (numbers[:, 0] - numbers[:, 1]) / 128 + 0.8 * (words[:, 0] == 1) - 1
    labels = (random.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    return EvalSet(features=np.concatenate([words, numbers], axis=1).astype(np.uint8), labels=labels)


def ridge_scores(train: EvalSet, test: EvalSet) -> np.ndarray:
    model = make_pipeline(
        ColumnTransformer([("words", OneHotEncoder(), [0]), ("rest", StandardScaler(), slice(1, None))]),
        LogisticRegression(C=0.1),
    )
    return np.asarray(model.fit(train.features, train.labels).predict_proba(test.features)[:, 1])


def test_a_panel_alone_reaches_a_ridge_regression_where_tables_of_numbers_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (0.01,))  # the best of all for these tables
    panel = records(600, 1)
    ridge = np.empty(len(panel))
    for held, others in panel.folds():
        ridge[held] = ridge_scores(others, panel.take(held))
    reached = roc_auc_score(panel.labels, ridge)
    found = cross_fit_linear(ENCODER, LOGITS, panel, outputs=1)
    assert found.evaluation.auc is not None
    assert found.evaluation.auc == pytest.approx(reached, abs=0.01)
    tables = cross_fit_panel(table_network(ENCODER, hidden=(), outputs=1, seed=0), LOGITS, panel)
    assert tables.evaluation.auc is not None
    assert tables.evaluation.auc < reached - 0.01


def test_plain_training_reaches_a_ridge_regression_and_is_the_file_that_is_returned() -> None:
    reported, panel = records(2_000, 2), records(1_000, 3)
    found = fit_linear(ENCODER, LOGITS, reported, panel, outputs=1)
    assert found.evaluation == evaluate(found.model, panel.features, panel.labels, LOGITS)
    assert found.evaluation.auc == pytest.approx(
        roc_auc_score(panel.labels, ridge_scores(reported, panel)), abs=0.01
    )
    assert found == fit_linear(ENCODER, LOGITS, reported, panel, outputs=1)


def test_a_number_whose_effect_is_no_line_is_learned_in_bins() -> None:
    def bent(seed: int) -> EvalSet:
        drawn = records(2_000, seed)
        return EvalSet(
            features=drawn.features, labels=(np.abs(drawn.features[:, 3] - 128.0) < 60).astype(np.int64)
        )

    found = fit_linear(ENCODER, LOGITS, bent(1), bent(2), outputs=1)
    assert found.are_numbers_in_bins
    assert found.evaluation.auc is not None
    assert found.evaluation.auc > 0.95


@pytest.mark.parametrize("encoder", [ENCODER, None])
@pytest.mark.parametrize(
    ("loss", "outputs"),
    [(Loss.CROSS_ENTROPY, 3), (Loss.MSE, 1), (Loss.POISSON, 1), (Loss.BINARY_CROSS_ENTROPY, 1)],
)
def test_every_loss_is_trained_to_less_than_a_constant_leaves(
    loss: Loss, outputs: int, encoder: Encoder | None
) -> None:
    def labelled(seed: int) -> EvalSet:
        drawn = records(800, seed)
        first = drawn.features[:, 1].astype(np.int64)
        of = first // 86 if loss is Loss.CROSS_ENTROPY else first // 128
        return EvalSet(features=drawn.features, labels=of)

    found = fit_linear(encoder, loss, labelled(1), labelled(2), outputs=outputs)
    constant = dense_network([1 + NUMBERS, outputs], "relu", seed=0, final="linear")
    untrained = evaluate(constant, labelled(2).features, labelled(2).labels, found.loss)
    assert found.evaluation.loss < 0.9 * untrained.loss
    assert found.loss is (LOGITS if loss is Loss.BINARY_CROSS_ENTROPY else loss)


def test_more_outputs_than_a_table_has_entries_are_not_written() -> None:
    assert can_fit(ENCODER, 8)
    assert not can_fit(ENCODER, 9)
    assert can_fit(None, 9)

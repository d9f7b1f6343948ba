"""Models are compared on identical rows, from files, scores, or one of each."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from adserver import compare, predict
from adserver.client.comparison import _codes
from adserver.training.paired_comparison import compare_scores
from adserver.training.pipeline import ENCODER_IS, LOSS_IS, describe, from_columns
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import ClassLabel, Encoder, NumberColumn
from maskedlark.errors import InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

ENCODER = Encoder(
    columns=tuple(NumberColumn(name=name, first=1, missing=0, edges=(-1.0, 0.0, 1.0)) for name in "abc"),
    label=ClassLabel(name="bought", classes=("no", "yes")),
)
COUNT = 400


def labelled(*classes: str) -> Encoder:
    return Encoder(columns=ENCODER.columns, label=ClassLabel(name="bought", classes=classes))


def model(seed: int, outputs: int = 1, encoder: Encoder = ENCODER) -> bytes:
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if outputs == 1 else Loss.CROSS_ENTROPY
    network = dense_network([3, 6, outputs], "relu", seed=seed, final="linear")
    return from_columns(describe(network, **{ENCODER_IS: encoder.digest.hex(), LOSS_IS: loss.value}), encoder)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(4).normal(0, 1.5, (COUNT, 3)), columns=list("abc"))


@pytest.fixture(scope="module")
def labels(rows: pd.DataFrame) -> NDArray[np.int64]:
    noise = np.random.default_rng(5).normal(0, 1, COUNT)
    is_one: NDArray[np.bool_] = rows["a"].to_numpy() + noise > 0
    return is_one.astype(np.int64)


def test_files_and_scores_are_compared_as_their_predictions_are(
    rows: pd.DataFrame, labels: NDArray[np.int64], tmp_path: Path
) -> None:
    first, second, path = model(1), model(2), tmp_path / "first.onnx"
    path.write_bytes(first)
    expected = compare_scores(predict(first, rows), predict(second, rows), labels)
    assert expected.low != expected.high
    scores = predict(second, rows)
    as_dicts = rows.to_dict("records")
    assert compare(first, second, rows, labels) == expected
    assert compare(path, second, iter(as_dicts), list(labels)) == expected
    assert compare(str(path), pd.Series(scores), as_dicts, labels == 1) == expected
    assert compare(predict(first, rows), scores, None, labels) == expected
    # The order alone counts: a twin may give logits
    assert compare(first, np.log(scores / (1 - scores)), rows, labels) == expected
    # A model of two outputs is one of two classes
    assert compare(model(3, outputs=2), first, rows, labels).metric == "auc"


def test_labels_are_codes_truths_or_the_encoders_words(rows: pd.DataFrame, labels: NDArray[np.int64]) -> None:
    first, second = model(1), model(2)
    expected = compare(first, second, rows, labels)
    words = np.where(labels == 1, "yes", " no")
    assert compare(first, second, rows, words) == expected
    assert compare(first, second, rows, pd.Series(words, dtype="string")) == expected
    with pytest.raises(InvalidTask, match=r"the label 'maybe' is neither .* \('no', 'yes'\)"):
        compare(first, second, rows, ["maybe", *words[1:]])
    with pytest.raises(InvalidTask, match=r"the label 0\.5 is neither"):
        compare(first, second, rows, [0.5, *labels[1:]])
    scores = predict(first, rows)
    with pytest.raises(InvalidTask, match="of which none is given"):
        compare(scores, scores, None, words)
    assert compare(scores, predict(second, rows), None, words, encoder=encode_to(ENCODER)) == expected


def test_where_classes_are_numbers_a_label_is_the_name_of_one(
    rows: pd.DataFrame, labels: NDArray[np.int64]
) -> None:
    first, second = (model(seed, encoder=labelled("1", "2")) for seed in (1, 2))
    expected = compare(model(1), model(2), rows, labels)
    for given in (labels + 1, labels + 1.0, (labels + 1).astype(str), [f"{one + 1}.0" for one in labels]):
        assert compare(first, second, rows, given) == expected
    with pytest.raises(InvalidTask, match=r"the label 0 is none of the encoder's classes \('1', '2'\)"):
        compare(first, second, rows, labels)
    with pytest.raises(InvalidTask, match=r"the label 1\.5 is none of the encoder's classes"):
        compare(first, second, rows, [1.5, *labels[1:] + 1])


@pytest.mark.parametrize("classes", [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
@pytest.mark.parametrize("dtype", [bool, object])
def test_a_bool_is_the_class_of_its_name_in_any_order_of_the_classes(
    rows: pd.DataFrame, labels: NDArray[np.int64], classes: tuple[str, str], dtype: type
) -> None:
    first, second = (model(seed, encoder=labelled(*classes)) for seed in (1, 2))
    expected = compare(model(1), model(2), rows, labels)
    assert compare(first, second, rows, (labels == 0).astype(dtype)) == expected
    assert compare(first, second, rows, [np.bool_(one == 0) for one in labels]) == expected
    # Without such names True is the code 1
    assert compare(model(1), model(2), rows, labels == 1) == expected


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT, "N/A", "-", "<NA>", " ", "?"], ids=repr)
def test_a_label_is_missing_as_a_cell_is(missing: Any, rows: pd.DataFrame, labels: NDArray[np.int64]) -> None:
    first, second = model(1), model(2)
    with pytest.warns(UserWarning, match="1 row is left out for both models: without a label"):
        found = compare(first, second, rows, [missing, *np.where(labels == 1, "yes", "no")[1:].tolist()])
    assert found == compare(first, second, rows.iloc[1:], labels[1:])


def test_files_whose_classes_are_in_different_orders_are_refused(
    rows: pd.DataFrame, labels: NDArray[np.int64]
) -> None:
    first, other = model(1), model(2, encoder=labelled("yes", "no"))
    with pytest.raises(InvalidTask, match="another order of them, no, yes and yes, no: give the scores"):
        compare(first, other, rows, labels)
    # As the refusal says
    found = compare(first, 1 - predict(other, rows), rows, np.where(labels == 1, "yes", "no"))
    assert found == compare(first, 1 - predict(other, rows), rows, labels)


def encode_to(encoder: Encoder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(encoder))
    return found


def test_a_row_that_one_model_cannot_score_is_left_out_of_both(
    rows: pd.DataFrame, labels: NDArray[np.int64]
) -> None:
    first, second = predict(model(1), rows), predict(model(2), rows)
    holes, others, unlabelled = first.copy(), second.copy(), labels.astype(object)
    holes[3], others[5], unlabelled[7], unlabelled[8] = np.nan, np.nan, None, np.nan
    kept = np.setdiff1d(np.arange(COUNT), [3, 5, 7, 8])
    with pytest.warns(UserWarning, match="4 rows are left out for both models"):
        found = compare(holes, others, None, unlabelled)
    assert found == compare_scores(first[kept], second[kept], labels[kept])
    assert found.examples == COUNT - 4


def test_a_row_that_a_file_cannot_read_is_left_out_of_both(
    rows: pd.DataFrame, labels: NDArray[np.int64]
) -> None:
    broken = rows.astype(object)
    broken.loc[2, "b"] = "word"
    scores = predict(model(2), rows)
    left_out = pytest.warns(UserWarning, match="1 row is left out for both models")
    with pytest.warns(UserWarning, match="1 row is not scored"), left_out:
        found = compare(model(1), scores, broken, labels)
    kept = np.delete(np.arange(COUNT), 2)
    assert found == compare_scores(predict(model(1), rows.iloc[kept]), scores[kept], labels[kept])


def test_the_verdict_names_the_models(rows: pd.DataFrame, labels: NDArray[np.int64]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(rows["a"], rows["b"], None, labels, names=("the private model", "plain training"))
    assert found.verdict.startswith("The private model ranks 0.")
    assert found.verdict.endswith(" better than plain training (AUC, 95 %, on the same 400 rows).")
    assert "AUC of plain training: 0." in repr(found)


def test_what_cannot_be_compared_is_refused(rows: pd.DataFrame, labels: NDArray[np.int64]) -> None:
    with pytest.raises(InvalidTask, match="rows is None, but a model is a file"):
        compare(model(1), labels, None, labels)
    with pytest.raises(InvalidTask, match=r"of plain training have the shape \(399,\): expected one row for"):
        compare(model(1), labels[1:], rows, labels, names=("private", "plain training"))
    with pytest.raises(InvalidTask, match=r"labels have the shape \(400, 1\)"):
        compare(model(1), labels, rows, labels[:, None])
    with pytest.raises(InvalidTask, match="expected at least 10 of each class"):
        compare(labels, labels, None, np.zeros(COUNT))


def test_a_class_that_is_called_none_is_one() -> None:
    assert _codes(["None", "Some", None], ("None", "Some")).tolist()[:2] == [0.0, 1.0]
    assert np.isnan(_codes(["None", "Some", None], ("None", "Some"))[2])

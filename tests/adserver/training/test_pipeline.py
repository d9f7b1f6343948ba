"""An exported model in plain onnxruntime.

Raw columns, or bytes, give the predictions of the trained model.
"""

from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from adserver.training.inference import predict
from adserver.training.pipeline import (
    ENCODER_IS,
    ENCODER_ITSELF,
    INPUT_IS,
    SCALED,
    describe,
    feed_of_columns,
    from_bytes,
    from_columns,
    width_of_outputs,
    without_encoder,
)
from maskedlark.canonical import encode
from maskedlark.encoding.cells import MISSING, number, said
from maskedlark.encoding.column_kinds import Binning
from maskedlark.encoding.encoder import CategoryColumn, Encoder, IdColumn, NumberColumn
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from tests.torch_models import dense, export

ROWS = 10_000


def raw_rows(rows: int, *, seed: int) -> dict[str, list[str]]:
    """Columns as they stand in a file: numbers in several spellings, words, and gaps."""
    random = Random(seed)
    gaps = ["", "?", "NA", "n/a", "None", "-", "<NA>", "NaT"]

    def often(value: str) -> str:
        return value if random.random() < 0.9 else random.choice(gaps)

    return {
        "age": [str(random.randint(17, 90)) for _ in range(rows)],
        "rate": [often(repr(random.random() / 7)) for _ in range(rows)],
        "spelt": [often(f"{random.gauss(0, 1e4):.2e}") for _ in range(rows)],
        "work": [often(random.choice(["Private", "State-gov", "Ärzte", "日本"])) for _ in range(rows)],
        "output": [f"word {int(random.expovariate(0.01))}" for _ in range(rows)],
        "constant": ["3"] * rows,
    }


def cells(columns: dict[str, list[str]]) -> dict[str, list[str | None]]:
    return {name: [said(cell) for cell in column] for name, column in columns.items()}


def fed(columns: dict[str, list[str | None]], encoder: Encoder) -> dict[str, NDArray[np.generic]]:
    """What a user of the graph gives: float64 with NaN, and strings with nothing for gaps."""
    feed: dict[str, NDArray[np.generic]] = {}
    for column in encoder.columns:
        held = columns[column.name]
        if isinstance(column, NumberColumn):
            values = [np.nan if cell is None else number(cell) for cell in held]
            feed[column.name] = np.array(values, np.float64).reshape(-1, 1)
        else:
            feed[column.name] = np.array([cell or "" for cell in held], object).reshape(-1, 1)
    return feed


def run(encoded: bytes, feed: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = onnxruntime.InferenceSession(encoded).run(None, feed)[0]
    return result


@pytest.mark.parametrize("binning", Binning)
def test_raw_rows_get_the_predictions_of_the_trained_model(binning: Binning) -> None:
    encoder = fit(cells(raw_rows(2_000, seed=1)), FitSettings(binning=binning))
    model = dense_network([6, 16, 3], "relu", seed=7)
    columns = cells(raw_rows(ROWS, seed=2))
    trained = predict(model, encoder.features(columns))
    from_raw = run(from_columns(model, encoder), fed(columns, encoder))
    assert from_raw.shape == (ROWS, 3)
    assert int((from_raw.argmax(1) != trained.argmax(1)).sum()) == 0
    np.testing.assert_allclose(from_raw, trained, rtol=0, atol=1e-5)


def test_a_cell_on_an_edge_and_its_neighbours_get_the_encoders_byte() -> None:
    column = NumberColumn(name="n", edges=(0.1, 0.3, 1e22), first=1, missing=0)
    encoder = Encoder(columns=(column,))
    near = [
        step for edge in column.edges for step in (np.nextafter(edge, -1), edge, np.nextafter(edge, 1e300))
    ]
    held: dict[str, list[str | None]] = {"n": [repr(float(value)) for value in near]}
    identity = dense_network([1, 1], "relu", seed=1)
    found = run(from_columns(identity, encoder), fed(held, encoder))
    np.testing.assert_array_equal(found, predict(identity, encoder.features(held)))


def test_bytes_go_in_as_bytes_and_the_division_is_by_256() -> None:
    model = dense_network([4, 8, 2], "relu", seed=3)
    features = np.random.default_rng(1).integers(0, 256, (1_000, 4), np.uint8)
    found = run(from_bytes(model, 4), {"features": features})
    np.testing.assert_allclose(found, predict(model, features), rtol=0, atol=1e-6)
    by_255 = run(model, {"features": (features / 255).astype(np.float32)})
    assert np.abs(by_255 - predict(model, features)).max() > 1e-4


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("records", [1, 2])
def test_graphs_of_torch_take_columns_too(dynamo: bool, records: int) -> None:
    module, width = dense()
    exported = export(module, width, records, dynamo=dynamo)
    names = ["x", "input", "a", "b", "c", "d"]
    table: dict[str, list[str | None]] = {name: [str(row * row % 7) for row in range(20)] for name in names}
    encoder = fit(table, FitSettings())
    graph = from_columns(exported, encoder)
    onnx.checker.check_model(onnx.ModelProto.FromString(graph), full_check=True)
    feed = {name: column[:1] for name, column in fed(table, encoder).items()}
    np.testing.assert_allclose(
        run(graph, feed), predict(exported, encoder.features(table))[:1], rtol=0, atol=1e-6
    )


def test_the_files_say_what_they_take() -> None:
    model = dense_network([1, 1], "relu", seed=1)
    encoder = Encoder(columns=(CategoryColumn(name="w", categories=("a",), first=0, missing=1),))

    def notes(encoded: bytes) -> dict[str, str]:
        found: dict[str, str] = onnxruntime.InferenceSession(encoded).get_modelmeta().custom_metadata_map
        return found

    plain = describe(model, **{INPUT_IS: SCALED})
    assert "divided by 256, not by 255" in notes(plain)[INPUT_IS]
    assert parse(plain, num_features=1).digest == parse(model, num_features=1).digest
    assert "uint8" in notes(from_bytes(plain, 1))[INPUT_IS]
    assert notes(from_columns(plain, encoder)) == {
        INPUT_IS: notes(from_columns(model, encoder))[INPUT_IS],
        ENCODER_IS: encoder.digest.hex(),
        ENCODER_ITSELF: encode(encoder).decode(),
    }


def test_the_feed_of_columns_is_what_a_user_of_the_graph_gives() -> None:
    columns = cells(raw_rows(200, seed=3))
    encoder = fit(columns, FitSettings())
    expected, found = fed(columns, encoder), feed_of_columns(encoder, columns)
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].dtype == column.dtype
        np.testing.assert_array_equal(found[name], column)


def test_a_graph_declares_its_outputs() -> None:
    assert [width_of_outputs(dense_network([2, width], "relu", seed=1)) for width in (1, 3)] == [1, 3]
    proto = onnx.ModelProto.FromString(dense_network([2, 1], "relu", seed=1))
    del proto.graph.output[0].type.tensor_type.shape.dim[1]
    assert width_of_outputs(proto.SerializeToString()) == 1


def test_an_encoder_of_another_width_or_with_the_outputs_name_is_refused() -> None:
    model = dense_network([2, 1], "relu", seed=1)
    one = CategoryColumn(name="w", categories=("a",), first=0, missing=1)
    with pytest.raises(InvalidTask, match="makes 1 features, but the model takes 2"):
        from_columns(model, Encoder(columns=(one,)))
    output = onnx.ModelProto.FromString(model).graph.output[0].name
    other = CategoryColumn(name=output, categories=("a",), first=0, missing=1)
    with pytest.raises(InvalidTask, match="rename one"):
        from_columns(model, Encoder(columns=(one, other)))


def test_ids_get_the_rows_of_the_encoder() -> None:
    columns = cells({"user": [f"u{index % 900}" for index in range(2_000)], "age": ["1", "2"] * 1_000})
    encoder = fit(columns, FitSettings(words={"user": 700}))
    assert encoder.num_features == 3
    model = dense_network([3, 4, 1], "relu", seed=7)
    given = cells({"user": ["u0", "u699", "nobody", "N/A", "U0"], "age": ["1", "2", "1", "2", "1"]})
    from_raw = run(from_columns(model, encoder), fed(given, encoder))
    np.testing.assert_allclose(from_raw, predict(model, encoder.features(given)), rtol=0, atol=1e-5)


def test_a_gap_is_one_in_the_graph_in_any_case_and_whatever_words_the_encoder_lists() -> None:
    words = ("red", "-", "none")
    encoder = Encoder(
        columns=(
            CategoryColumn(name="colour", categories=words, first=1, missing=0),
            IdColumn(name="user", words=words),
        )
    )
    spelled = [*MISSING, *map(str.upper, MISSING), "NaN", "NaT", "nAt", "<Na>", "red", "---", "-1", ".5"]
    graph = from_columns(dense_network([2, 3, 1], "relu", seed=7), encoder)
    as_written = np.array(spelled, object)[:, None]
    read = [said(cell) for cell in spelled]
    features = encoder.features({"colour": read, "user": read})
    assert features[: len(MISSING)].any() == np.False_
    found = run(graph, {"colour": as_written, "user": as_written})
    expected = predict(dense_network([2, 3, 1], "relu", seed=7), features)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    # Letters alone have capitals: of `<na>` there are four spellings, not sixteen
    look_ups = [
        node for node in onnx.ModelProto.FromString(graph).graph.node if node.op_type == "LabelEncoder"
    ]
    for node in look_ups:
        keys = next(one.strings for one in node.attribute if one.name == "keys_strings")
        assert len(keys) == len(set(keys)) == 70


def test_hashed_ids_have_no_graph() -> None:
    encoder = fit({"user": ["u"]}, FitSettings(hashed={"user": 70_000}))
    with pytest.raises(InvalidTask, match="'user' is hashed"):
        from_columns(dense_network([3, 4, 1], "relu", seed=7), encoder)


@pytest.mark.parametrize("form", ["columns", "bytes", "scaled"])
def test_the_model_behind_an_encoder_is_the_one_that_went_in(form: str) -> None:
    columns = cells(raw_rows(50, seed=2))
    encoder = fit(columns, FitSettings())
    width = encoder.num_features
    model = describe(dense_network([width, 4, 1], "relu", seed=1), **{INPUT_IS: SCALED})
    exported = {"columns": from_columns(model, encoder), "bytes": from_bytes(model, width), "scaled": model}
    found = without_encoder(exported[form], num_features=width, encoder=encoder.digest)
    before, after = (parse(one, num_features=width) for one in (model, found))
    assert after.digest == before.digest
    for value, expected in zip(after.initial_values, before.initial_values, strict=True):
        assert value.tobytes() == expected.tobytes()
    features = encoder.features(columns)
    np.testing.assert_array_equal(predict(found, features), predict(model, features))


def test_a_model_with_another_encoder_than_the_tasks_is_refused() -> None:
    encoder = fit(cells(raw_rows(50, seed=2)), FitSettings())
    width = encoder.num_features
    model = from_columns(dense_network([width, 1], "relu", seed=1), encoder)
    with pytest.raises(InvalidTask, match="but the task's is 0101"):
        without_encoder(model, num_features=width, encoder=b"\x01" * 32)
    assert parse(without_encoder(model, num_features=width, encoder=None), num_features=width)

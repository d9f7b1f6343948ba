"""Torch modules and scikit-learn's estimators become ONNX files that give the same outputs."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier

from adserver.training.as_onnx import as_onnx, warn_of_modes
from adserver.training.inference import predict
from adserver.training.merged_parameters import separate_parameters
from helper.gradient.exact.lowering.lowering import lower
from maskedlark.errors import InvalidModel
from maskedlark.model.dense import dense_network
from maskedlark.model.exactness import why_general
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from tests.torch_models import dense, squeezed

RANDOM = np.random.default_rng(1)
BYTES = RANDOM.integers(0, 256, (60, 6), np.uint8)
SCALED = BYTES / 256.0
CLASSES = RANDOM.integers(0, 3, 60)
BINARY = CLASSES == 0


def test_files_and_bytes_come_as_they_are(tmp_path: Path) -> None:
    model = dense_network([6, 1], "relu", seed=1)
    (tmp_path / "model.onnx").write_bytes(model)
    assert (
        as_onnx(model, 6) == as_onnx(tmp_path / "model.onnx", 6) == as_onnx(str(tmp_path / "model.onnx"), 6)
    )


@pytest.mark.parametrize("make", [dense, squeezed])
@pytest.mark.parametrize("has_onnxscript", [True, False])
def test_a_torch_module_is_exported_and_left_as_it_was(
    make: Any, has_onnxscript: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_onnxscript:
        monkeypatch.setitem(sys.modules, "onnxscript", None)
    module, width = make()
    module.train()
    found = predict(as_onnx(module, width), BYTES)
    assert module.training
    expected = module.eval()(torch.tensor(SCALED, dtype=torch.float32)).detach().numpy().reshape(60, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_export_logs_nothing_of_libraries_that_it_does_not_need() -> None:
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log, listener = logging.getLogger("torch.onnx"), Listener()
    log.addHandler(listener)
    level = log.level
    try:
        as_onnx(dense()[0], dense()[1])
    finally:
        log.removeHandler(listener)
    assert (said, log.level) == ([], level)


def test_linear_models_give_what_scikit_learn_decides_by() -> None:
    binary = LogisticRegression().fit(SCALED, BINARY)
    np.testing.assert_allclose(
        predict(as_onnx(binary, 6), BYTES)[:, 0], binary.decision_function(SCALED), atol=1e-5
    )
    several = LogisticRegression().fit(SCALED, CLASSES)
    found = predict(as_onnx(several, 6), BYTES)
    assert (found.argmax(1) == several.predict(SCALED)).all()
    regression = LinearRegression().fit(SCALED, CLASSES)
    np.testing.assert_allclose(
        predict(as_onnx(regression, 6), BYTES)[:, 0], regression.predict(SCALED), atol=1e-5
    )


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic"])
def test_a_perceptron_gives_scikit_learns_classes(activation: str) -> None:
    model = MLPClassifier((5, 4), activation=activation, max_iter=1)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        model.fit(SCALED, CLASSES)
    found = predict(as_onnx(model, 6), BYTES)
    assert (found.argmax(1) == model.predict(SCALED)).all()


@pytest.mark.parametrize("model", [object(), 3, {"a": 1}])
def test_what_is_no_model_is_refused_by_its_kind(model: object) -> None:
    with pytest.raises(InvalidModel, match="expected an ONNX file"):
        as_onnx(model, 6)


def test_an_estimator_without_a_fit_is_said_to_have_none() -> None:
    with pytest.raises(InvalidModel, match=r"this one is not fitted: call its fit$"):
        as_onnx(LogisticRegression(), 6)
    with pytest.raises(InvalidModel, match=r"MLP of scikit-learn$"):
        as_onnx(KMeans(2, n_init=1).fit(SCALED), 6)


class _TwoInputs(torch.nn.Module):
    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return words + numbers


@pytest.mark.parametrize(
    ("module", "why"),
    [(torch.nn.Linear(2, 1), "cannot be multiplied"), (_TwoInputs(), "missing 1 required positional")],
)
def test_a_module_that_does_not_take_the_features_is_refused_in_one_line(
    module: torch.nn.Module, why: str
) -> None:
    with pytest.raises(
        InvalidModel, match=rf"of \(records, 3\), the features of the reports: .*{why}"
    ) as found:
        as_onnx(module, num_features=3)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("kind", "named"), [(torch.float64, "float64"), (torch.bfloat16, "bfloat16")])
def test_a_module_of_another_precision_is_told_to_become_float(kind: torch.dtype, named: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 1)).to(kind)
    with pytest.raises(InvalidModel, match=rf"parameter '0.weight' is {named}.*call the module's .float\(\)"):
        as_onnx(module, num_features=3)
    as_onnx(module.float(), num_features=3)


class Begun(torch.nn.Module):
    """Layers whose biases begin at zero, a normalisation of ones and zeros, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
        self.norm, self.attention = torch.nn.LayerNorm(16), torch.nn.MultiheadAttention(8, 2)
        for layer in (self.first, self.last):
            torch.nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(self.first(x)).reshape(-1, 2, 8).transpose(0, 1)
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        outputs: torch.Tensor = self.last(mixed.transpose(0, 1).flatten(1))
        return outputs


def test_parameters_that_begin_at_one_number_are_all_in_the_file() -> None:
    torch.manual_seed(3)
    module = Begun()
    before = [one.detach().clone() for one in module.parameters()]
    encoded = separate_parameters(as_onnx(module, 4))
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    found = parse(encoded, num_features=4)
    assert found.num_parameters == sum(one.numel() for one in before)
    assert {"first.bias", "last.bias", "attention.out_proj.bias"} <= {one.name for one in found.parameters}
    x = np.random.default_rng(1).integers(0, 256, (5, 4), np.uint8)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x / np.float32(256))).numpy()
    assert np.abs(predict(encoded, x) - expected).max() < 1e-5


class Folded(torch.nn.Module):
    """A parameter of ones that multiplies another: the exporter keeps the product alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.ones = torch.nn.Linear(4, 1), torch.nn.Parameter(torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.layer.weight * self.ones, self.layer.bias)


class Half(torch.nn.Module):
    """A parameter of ones that is used as it is, and folded into another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.ones = torch.nn.Linear(4, 1), torch.nn.Parameter(torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x * self.ones, self.layer.weight * self.ones, self.layer.bias)


class Mixed(torch.nn.Module):
    """A parameter of zero that is used as it is, and in a sum that the exporter makes a constant of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        self.share = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.share * self.layer(x) + (1 - self.share) * self.other(x)
        return mixed


@pytest.mark.parametrize("make", [Folded, Half, Mixed])
def test_a_module_whose_parameters_the_exporter_folds_is_exported_with_its_own_values(make: Any) -> None:
    torch.manual_seed(3)
    module = make()
    x = np.random.default_rng(1).integers(0, 256, (5, 4), np.uint8)
    with torch.no_grad():
        expected = module(torch.from_numpy(x / np.float32(256))).numpy()
    assert np.abs(predict(separate_parameters(as_onnx(module, 4)), x) - expected).max() < 1e-5


class Tied(torch.nn.Module):
    """A weight of ones that is used as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.relu(x @ self.weight) @ self.weight.T)
        return outputs


def test_a_tied_parameter_of_one_number_keeps_it_wherever_it_is_used() -> None:
    torch.manual_seed(3)
    module = Tied()
    x = np.random.default_rng(1).integers(0, 256, (5, 4), np.uint8)
    with torch.no_grad():
        expected = module(torch.from_numpy(x / np.float32(256))).numpy()
    assert np.abs(predict(as_onnx(module, 4), x) - expected).max() < 1e-5


class Unused(torch.nn.Module):
    """Two layers with biases of zeros, of which one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        for layer in (self.used, self.unused):
            torch.nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.used(x)
        return outputs


def test_a_layer_that_nothing_uses_costs_no_other_its_bias() -> None:
    found = parse(separate_parameters(as_onnx(Unused(), 4)), num_features=4)
    assert {one.name: one.size for one in found.parameters} == {"used.weight": 4, "used.bias": 1}


def test_a_parameter_that_cannot_be_written_to_is_exported() -> None:
    module = torch.nn.Linear(4, 3)
    module.bias = torch.nn.Parameter(torch.zeros(1).expand(3))
    assert parse(as_onnx(module, 4), num_features=4).num_parameters == 15


class Bag(torch.nn.Module):
    """A mean of the rows that three words name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = torch.nn.EmbeddingBag(256, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.words((x * 256).long()))
        return found


class Asks(torch.nn.Module):
    """What it computes depends on the records of a run together."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = -x
        found: torch.Tensor = self.last(x)
        return found


def test_a_bag_of_embeddings_is_refused_by_its_name_with_what_to_write() -> None:
    with pytest.raises(InvalidModel, match=r"'words' is an nn.EmbeddingBag.*: use nn.Embedding and a sum"):
        as_onnx(Bag(), 3)


def test_a_condition_on_values_is_refused_in_one_line_that_names_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(InvalidModel) as refusal:
        as_onnx(Asks(), 3)
    said = str(refusal.value)
    assert "in forward, 'if x.sum() > 0:', depends on values of the records: write it without if" in said
    assert "\x1b" not in said
    assert "\n" not in said
    assert len(said) < 300
    assert "GraphModule" not in "".join(capfd.readouterr())


def test_layers_of_dropout_are_named_and_those_that_drop_nothing_are_not() -> None:
    layers = [torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Dropout(0.0), torch.nn.Linear(3, 1)]
    [told] = warn_of_modes(torch.nn.Sequential(*layers))
    assert told.startswith("dropout ('1') is not applied")
    assert not [*warn_of_modes(torch.nn.Linear(3, 1)), *warn_of_modes(b"a file")]


def test_batch_norm_that_has_seen_no_record_is_told_and_other_is_not() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    [told] = warn_of_modes(module)
    assert told.startswith("batch norm ('1') has seen no record")
    module(torch.rand(8, 3))
    assert not [*warn_of_modes(module)]


@pytest.mark.parametrize("layer", [torch.nn.ReLU, torch.nn.ELU, torch.nn.SiLU, torch.nn.LeakyReLU])
@pytest.mark.parametrize("has_onnxscript", [True, False])
def test_torchs_form_of_what_is_advised_in_place_of_others_is_exact(
    layer: type[torch.nn.Module], *, has_onnxscript: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_onnxscript:
        monkeypatch.setitem(sys.modules, "onnxscript", None)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), layer(), torch.nn.Linear(4, 1))
    model = parse(as_onnx(module, 3), num_features=3)
    assert why_general(model, Loss.MSE) == ()
    lower(model, Loss.MSE)

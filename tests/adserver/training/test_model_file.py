"""A model whose weights lie beside it becomes one file; nothing outside its folder is read."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from adserver.training.as_onnx import as_onnx
from adserver.training.model_file import (
    check_loss_fits,
    check_reading,
    prepare_model,
    read_model,
    warn_of_loss,
    why_loss_misfits,
)
from adserver.training.pipeline import LOSS_IS, describe
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.limits import Limits
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from tests.torch_models import dense, export

MODEL = dense_network([4, 8, 1], "relu", seed=1)


def test_a_job_tells_helpers_nothing_of_the_code_that_its_network_was_written_in() -> None:
    module, width = dense()
    exported = export(module, width, 2, dynamo=True)
    prepared = prepare_model(exported, num_features=width, encoder=None)
    for note in (b"stack_trace", b"class_hierarchy", b"torch.nn.modules"):
        assert note in exported
        assert note not in prepared.file
    assert str(Path(torch.__file__).parent).encode() not in prepared.file
    assert prepared.parsed.digest == parse(prepared.file, num_features=width).digest
    kept, given = (onnx.ModelProto.FromString(one).graph for one in (prepared.file, exported))
    assert [one.raw_data for one in kept.initializer] == [one.raw_data for one in given.initializer]
    assert prepare_model(prepared.file, num_features=width, encoder=None).file == prepared.file


def test_no_exporters_notes_reach_helpers_wherever_they_stand_and_metadata_of_the_author_stays() -> None:
    proto = onnx.ModelProto.FromString(MODEL)
    onnx.helper.set_model_props(proto, {"author": "me"})
    graph = proto.graph
    places = (graph, graph.node[0], graph.input[0], graph.output[0], graph.initializer[0])
    graph.value_info.append(onnx.helper.make_tensor_value_info("none", onnx.TensorProto.FLOAT, [1]))
    for place in (
        proto,
        *places,
        graph.value_info[0],
        graph.node[0].attribute.add(name="alpha", f=1, type=1),
    ):
        place.doc_string = "/home/me/ranker.py(12): forward"
    for place in (*places, graph.value_info[0]):
        place.metadata_props.add(key="source", value="/home/me/ranker.py")
    prepared = prepare_model(proto.SerializeToString(), num_features=4, encoder=None)
    assert b"ranker" not in prepared.file
    kept = onnx.ModelProto.FromString(prepared.file)
    assert [(one.key, one.value) for one in kept.metadata_props] == [("author", "me")]
    assert prepare_model(MODEL, num_features=4, encoder=None).file == MODEL


def split(folder: Path, **changes: Callable[[str], str]) -> Path:
    """The model with its weights in `model.onnx.data`, and entries of one tensor changed."""
    proto = onnx.ModelProto.FromString(MODEL)
    data = b""
    for tensor in proto.graph.initializer:
        held = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": "model.onnx.data", "offset": str(len(data)), "length": str(len(held))}
        for key, value in entries.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, changes.get(key, str)(value)
        data += held
    (folder / "model.onnx.data").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_file_that_holds_its_weights_comes_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "whole.onnx"
    path.write_bytes(MODEL)
    assert read_model(path) == MODEL
    path.write_bytes(b"no model")
    assert read_model(path) == b"no model"


def test_weights_beside_the_file_are_folded_into_it(tmp_path: Path) -> None:
    path = split(tmp_path)
    with pytest.raises(InvalidModel) as refused:
        parse(path.read_bytes(), num_features=4)
    assert refused.value.reason is ModelReason.EXTERNAL_DATA
    folded, whole = parse(read_model(path), num_features=4), parse(MODEL, num_features=4)
    assert folded.digest == whole.digest
    for one, other in zip(folded.initial_values, whole.initial_values, strict=True):
        assert one.tobytes() == other.tobytes()
    assert read_model(path) == read_model(path)


def test_torchs_default_export_is_folded_and_gives_the_modules_outputs(tmp_path: Path) -> None:
    module, width = dense()
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(module, (torch.zeros(1, width),), path, verbose=False)
    assert (tmp_path / "net.onnx.data").is_file()
    encoded = read_model(path)
    assert parse(encoded, num_features=width).output_width == 1
    session = onnxruntime.InferenceSession(encoded)
    inputs = np.random.default_rng(1).random((1, width), np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: inputs})
    np.testing.assert_allclose(found, module(torch.tensor(inputs)).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"location": lambda _: "../secret"}, "outside the folder"),
        ({"location": lambda _: "/etc/hostname"}, "outside the folder"),
        ({"location": lambda _: ""}, "outside the folder"),
        ({"location": lambda _: "absent.data"}, "is missing: keep both files"),
        ({"offset": lambda _: "-1"}, "shorter than"),
        ({"length": lambda _: "9999999"}, "shorter than"),
        ({"offset": lambda _: "many"}, "not a number"),
    ],
    ids=["upwards", "absolute", "none", "absent", "negative", "beyond", "word"],
)
def test_data_that_is_not_where_the_model_says_is_refused(
    tmp_path: Path, changes: dict[str, Callable[[str], str]], why: str
) -> None:
    with pytest.raises(InvalidModel, match=why) as refused:
        read_model(split(tmp_path, **changes))
    assert refused.value.reason is ModelReason.EXTERNAL_DATA


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    path = split(tmp_path)
    outside = tmp_path.parent / "outside.data"
    (tmp_path / "model.onnx.data").rename(outside)
    (tmp_path / "model.onnx.data").symlink_to(outside)
    with pytest.raises(InvalidModel, match="is missing: keep both files"):
        read_model(path)


def test_data_past_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = split(tmp_path)
    with pytest.raises(InvalidModel) as refused:
        read_model(path, limits=Limits(max_bytes=path.stat().st_size + 10))
    assert refused.value.reason is ModelReason.TOO_LARGE
    with pytest.raises(InvalidModel) as refused:
        read_model(path, limits=Limits(max_bytes=10))
    assert refused.value.reason is ModelReason.TOO_LARGE


class Ending(torch.nn.Module):
    """Two linear outputs, and what makes one of them."""

    def __init__(self, end: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.end = end

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.end(self.layer(features))


def why(end: Callable[[torch.Tensor], torch.Tensor], loss: Loss) -> str:
    return why_loss_misfits(parse(as_onnx(Ending(end), 4), num_features=4), loss)


@pytest.mark.parametrize(
    "end",
    [
        lambda z: z[:, :1],
        lambda z: z[:, :1] + z[:, 1:],
        lambda z: torch.relu(z[:, :1]),
        lambda z: torch.tanh(z[:, :1]),
        lambda z: torch.log_softmax(z, 1)[:, 1:],
        lambda z: torch.clip(z[:, :1], -1, 1),
        lambda z: torch.nn.functional.softplus(z[:, :1]),
        lambda z: 1 - torch.relu(z[:, :1]),
        lambda z: torch.relu(torch.relu(z[:, :1])),
        lambda z: torch.cat([z[:, :1], z[:, 1:]], 1)[:, :1],
    ],
)
def test_an_output_that_is_no_probability_misfits_a_loss_of_probabilities(
    end: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert "use binary_cross_entropy_with_logits on logits" in why(end, Loss.BINARY_CROSS_ENTROPY)
    assert not why(end, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)


@pytest.mark.parametrize(
    "end",
    [
        lambda z: torch.sigmoid(z[:, :1]),
        lambda z: torch.sigmoid(z[:, 0]).unsqueeze(1),
        lambda z: 1 - torch.sigmoid(z[:, :1]),
        lambda z: torch.sigmoid(z[:, :1]) * torch.sigmoid(z[:, 1:]),
        lambda z: torch.softmax(z, 1)[:, 1:],
        lambda z: torch.exp(torch.log_softmax(z, 1))[:, 1:],
        lambda z: torch.clip(z[:, :1], 0.0, 1.0),
        lambda z: (torch.tanh(z[:, :1]) + 1) / 2,
        lambda z: torch.clip(z[:, :1] + 3, 0.0, 6.0) / 6,
        lambda z: torch.clip(torch.sigmoid(z[:, :1]), 1e-6, 1 - 1e-6),
        lambda z: 0.9 * torch.sigmoid(z[:, :1]) + 0.05,
        lambda z: torch.relu(1 - torch.relu(1 - z[:, :1])),
        lambda z: 1 - torch.relu(1 - torch.relu(z[:, :1])),
        lambda z: torch.cat([z[:, :1], torch.sigmoid(z[:, 1:])], 1)[:, 1:],
    ],
)
def test_an_output_that_may_be_a_probability_fits_a_loss_of_probabilities(
    end: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert not why(end, Loss.BINARY_CROSS_ENTROPY)


def test_a_model_that_ends_with_what_its_loss_applies_misfits_it() -> None:
    for end in (lambda z: torch.sigmoid(z[:, :1]), lambda z: torch.sigmoid(z[:, 0]).unsqueeze(1)):
        assert "ends with Sigmoid" in why(end, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    assert "leave out the Softmax" in why(lambda z: torch.softmax(z, 1), Loss.CROSS_ENTROPY)
    assert not why(lambda z: z, Loss.CROSS_ENTROPY)
    # A value of several sources has no last function
    joined = why(lambda z: torch.cat([torch.sigmoid(z[:, :1]), z[:, 1:]], 1)[:, 1:], LOGITS)
    assert not joined


LOGITS, CHANCES = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Loss.BINARY_CROSS_ENTROPY


@pytest.mark.parametrize(
    ("end", "loss", "last"),
    [
        (lambda z: z[:, :1], None, ""),
        (lambda z: z, None, ""),
        (lambda z: torch.softmax(z, 1), None, ""),
        (lambda z: torch.sigmoid(z[:, :1]), CHANCES, ""),
        (lambda z: torch.sigmoid(z[:, :1]), None, ""),
        (lambda z: torch.tanh(z[:, :1]) / 2, LOGITS, ""),
        (lambda z: torch.tanh(z[:, :1]) / 2, None, "Div|Mul"),
        (lambda z: torch.clip(torch.sigmoid(z[:, :1]), 1e-6, 1 - 1e-6), CHANCES, "Clip"),
        (lambda z: 1 - torch.sigmoid(z[:, :1]), None, "Sub"),
        (lambda z: 0.9 * torch.sigmoid(z[:, :1]) + 0.05, CHANCES, "Add"),
        (lambda z: torch.softmax(z, 1)[:, 1:], None, "Slice"),
        (lambda z: (torch.tanh(z[:, :1]) + 1) / 2, Loss.MSE, "Div|Mul"),
    ],
)
def test_a_chance_that_an_evaluation_would_read_as_a_logit_is_refused(
    end: Callable[[torch.Tensor], torch.Tensor], loss: Loss | None, last: str
) -> None:
    encoded = describe(as_onnx(Ending(end), 4), **({} if loss is None else {LOSS_IS: loss.value}))
    if not last:
        check_reading(encoded, num_features=4)
        return
    with pytest.raises(InvalidModel, match=f"may be a chance, but its last operator is ({last}),") as refused:
        check_reading(encoded, num_features=4)
    assert refused.value.reason is ModelReason.WRONG_LOSS


def test_losses_of_numbers_are_warned_of_where_two_classes_get_no_probability() -> None:
    linear, chance = (
        parse(dense_network([4, 1], "relu", seed=1, final=end), num_features=4)
        for end in ("linear", "sigmoid")
    )
    assert "two classes, and mse makes" in warn_of_loss(linear, Loss.MSE, 2)
    assert "two classes, and poisson makes" in warn_of_loss(chance, Loss.POISSON, 2)
    for model, loss, classes in (
        (chance, Loss.MSE, 2),
        (linear, Loss.MSE, None),
        (linear, Loss.MSE, 10),
        (linear, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 2),
        (chance, Loss.BINARY_CROSS_ENTROPY, 2),
    ):
        assert warn_of_loss(model, loss, classes) == ""


def test_a_probability_without_a_last_sigmoid_is_warned_of_before_it_is_trained() -> None:
    moved = parse(as_onnx(Ending(lambda z: torch.sigmoid(z[:, :1]).clamp(0.1, 0.9)), 4), num_features=4)
    assert why_loss_misfits(moved, Loss.BINARY_CROSS_ENTROPY) == ""
    assert "Clip and no Sigmoid: private evaluations" in warn_of_loss(moved, Loss.BINARY_CROSS_ENTROPY, 2)


def test_what_is_no_operator_is_named_as_in_torch_too() -> None:
    encoded = as_onnx(Ending(lambda z: torch.sort(z, 1).values[:, :1]), 4)
    named = "torch's sort cannot be trained: operator 'TopK' is not supported .*operators.md"
    with pytest.raises(InvalidModel, match=named):
        check_loss_fits(encoded, Loss.MSE, num_features=4)
    with pytest.raises(InvalidModel, match=named):
        prepare_model(encoded, num_features=4, encoder=None)

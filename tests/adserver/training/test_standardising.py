"""A network that nobody trained begins with features of one size, at the panel's base rate; others stay."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from adserver.records.submissions import Submission
from adserver.training.as_onnx import as_onnx
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate, predict
from adserver.training.logit_scaling import logits_of
from adserver.training.standardising import standardise, standardise_submission
from helper.gradient.choose import choose_engine
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.table_network import table_network
from maskedlark.privacy.clip import Clip, Norm

LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
CLIP = Clip(norm=Norm.L2, bound=10.0, frac_bits=10)


def panel_of(records: int = 400, positives: int = 48) -> EvalSet:
    """A word's place, 0 to 3; a number; a column that is the same in nearly all records."""
    chance = np.random.default_rng(1)
    words, numbers = chance.integers(0, 4, records), chance.integers(0, 256, records)
    constant = np.where(np.arange(records) == 7, 8, 9)
    features = np.stack([words, numbers, constant], axis=1).astype(np.uint8)
    return EvalSet(features=features, labels=(np.arange(records) < positives).astype(np.int64))


PANEL = panel_of()


def network(*widths: int, centres: tuple[int, ...] | None = None) -> bytes:
    return dense_network([3, *widths], "relu", seed=1, centres=centres)


def entering(encoded: bytes) -> NDArray[np.float32]:
    """What a linear network with weights of one column after the other makes of the panel."""
    model = parse(encoded, num_features=3)
    found = []
    for column in np.eye(3, dtype=np.float32):
        values = [column[None, :], np.zeros(1, np.float32)]
        found.append(predict(replace_parameters(encoded, model, values), PANEL.features)[:, 0])
    return np.stack(found, axis=1)


@pytest.mark.parametrize("centres", [None, (1, 128, 9)])
def test_features_enter_centred_with_spreads_alike_whether_or_not_the_network_subtracts_a_constant(
    centres: tuple[int, ...] | None,
) -> None:
    found = standardise(network(1, centres=centres), Loss.MSE, PANEL)
    twice = 1 if centres is None else 2
    values = entering(found.model) / twice
    assert np.abs(values.mean(axis=0)).max() < 0.2
    assert values.std(axis=0)[:2].min() > 0.2
    assert values.std(axis=0)[:2].max() < 0.45
    assert np.abs(values).max() < 4
    assert "centred and scaled" in found.told


@pytest.mark.parametrize("widths", [(1,), (8, 1), (8, 4, 1)])
def test_an_untrained_network_begins_at_the_base_rate_stays_exact_and_keeps_its_parameters(
    widths: tuple[int, ...],
) -> None:
    before = network(*widths)
    found = standardise(before, LOSS, PANEL)
    model = parse(found.model, num_features=3)
    assert [p.name for p in model.parameters] == [p.name for p in parse(before, num_features=3).parameters]
    assert choose_engine(model, LOSS, CLIP, 2).path == "exact"
    assert mean_prediction(found.model) == pytest.approx(48.5 / 401, rel=0.02)
    assert standardise(before, LOSS, PANEL) == found


def mean_prediction(encoded: bytes) -> float:
    logits = predict(encoded, PANEL.features).astype(np.float64)
    return float((1 / (1 + np.exp(-logits))).mean())


@pytest.mark.parametrize("logit", [-6.0, -2.0, 3.0])
def test_a_bias_that_its_author_set_counts_in_where_the_network_begins(logit: float) -> None:
    before = network(8, 1)
    model = parse(before, num_features=3)
    values = [np.zeros(p.shape, np.float32) for p in model.parameters]
    values[-1][:] = logit
    found = standardise(replace_parameters(before, model, values), LOSS, PANEL).model
    assert mean_prediction(found) == pytest.approx(48.5 / 401, rel=0.02)


def test_weights_that_know_something_of_the_labels_stay_as_they_are() -> None:
    begun = standardise(network(1), LOSS, PANEL).model
    labels = (PANEL.features[:, 1] > 200).astype(np.int64)
    trained = replace_parameters(
        begun, parse(begun, num_features=3), [np.array([[0, 1, 0]], np.float32), np.zeros(1, np.float32)]
    )
    panel = EvalSet(features=PANEL.features, labels=labels)
    assert standardise(trained, LOSS, panel).model == trained
    assert not standardise(trained, LOSS, panel).told


@pytest.mark.parametrize("loss", [LOSS, Loss.BINARY_CROSS_ENTROPY])
def test_weights_that_know_the_labels_at_another_base_rate_keep_all_but_a_shift_of_their_logit(
    loss: Loss,
) -> None:
    final = "linear" if loss is LOSS else "sigmoid"
    untrained = dense_network([3, 1], "relu", seed=1, final=final)
    model = parse(untrained, num_features=3)
    # As of training with few negatives: the logit is 8 too large, and the loss above the base rate's.
    values = [np.array([[0, 30, 0]], np.float32), np.array([-20], np.float32)]
    panel = EvalSet(features=PANEL.features, labels=(PANEL.features[:, 1] > 240).astype(np.int64))
    trained = replace_parameters(untrained, model, values)
    evaluated, least = evaluate(trained, panel.features, panel.labels, loss), panel.labels.mean()
    assert evaluated.loss > -(least * np.log(least) + (1 - least) * np.log(1 - least))
    found = standardise(trained, loss, panel)
    assert found.is_trained
    assert "only the logit is shifted" in found.told
    moved = logits_of(predict(found.model, panel.features)[:, 0].astype(np.float64), loss)
    moved -= logits_of(predict(trained, panel.features)[:, 0].astype(np.float64), loss)
    # Where float32 holds a probability and its complement
    moved = moved[(panel.features[:, 1] > 130) & (panel.features[:, 1] < 190)]
    assert np.ptp(moved) < 0.1
    assert moved.max() < -4
    shifted = parse(found.model, num_features=3)
    for before, after in zip(values, shifted.initial_values, strict=True):
        np.testing.assert_array_equal(before, after)
    # Once more there is nothing to shift.
    assert standardise(found.model, loss, panel).model == found.model
    assert not standardise(untrained, loss, panel).is_trained


def test_a_part_of_a_model_and_a_file_that_is_meant_so_keep_their_logit_and_only_the_latter_is_judged() -> (
    None
):
    panel = EvalSet(features=PANEL.features, labels=(PANEL.features[:, 1] > 240).astype(np.int64))
    untrained = dense_network([3, 1], "relu", seed=1)
    values = [np.array([[0, 30, 0]], np.float32), np.array([-20], np.float32)]
    trained = replace_parameters(untrained, parse(untrained, num_features=3), values)
    for model, is_standardised, train, is_trained in (
        (trained, False, (), True),
        (untrained, False, (), False),
        (b"no model", False, (), False),
        (trained, True, ("*bias*",), False),
    ):
        asked = Submission(
            model=model,
            dataset="",
            loss=LOSS.value,
            rounds=1,
            batch_size=None,
            epsilon=1.0,
            noise_multiplier=None,
            optimizer=None,
            schedule=None,
            eval_set=None,
            eval_every=None,
            is_standardised=is_standardised,
            train=train,
        )
        found = standardise_submission(asked, panel)
        assert (found.model, found.is_trained, found.told) == (model, is_trained, "")


@pytest.mark.parametrize("loss", [LOSS, Loss.BINARY_CROSS_ENTROPY, Loss.MSE])
@pytest.mark.parametrize("records", [1, 20])
def test_a_panel_of_one_label_tells_nothing_so_the_file_stays(records: int, loss: Loss) -> None:
    final = "sigmoid" if loss is Loss.BINARY_CROSS_ENTROPY else "linear"
    encoded = dense_network([3, 1], "relu", seed=1, final=final)
    for label in (0, 1):
        panel = EvalSet(features=PANEL.features[:records], labels=np.full(records, label))
        assert standardise(encoded, loss, panel).model == encoded


def test_what_was_standardised_stays_so_with_one_feature_or_many_and_weights_that_learned_nothing() -> None:
    for width in (1, 3):
        panel = EvalSet(features=PANEL.features[:, :width], labels=PANEL.labels)
        once = standardise(dense_network([width, 1], "relu", seed=1), LOSS, panel)
        assert once.told
        assert standardise(once.model, LOSS, panel).model == once.model


def _split(x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    one, other = torch.split(x, [first, 3 - first], dim=1)
    return one, other


Choice = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
CHOICES: dict[str, Choice] = {
    "cut out": lambda x: (x[:, :1], x[:, 1:]),
    "listed": lambda x: (x[:, [0]], x[:, [1, 2]]),
    "split": lambda x: _split(x, 1),
    "split, numbers first": lambda x: _split(x[:, [1, 2, 0]], 2)[::-1],
}


class Chosen(nn.Module):
    """The word's place picks a table's row; the other two features are numbers, however they are chosen."""

    def __init__(self, choose: Choice, shift: float = 0.0) -> None:
        super().__init__()
        self._choose = choose
        self.table, self.last = nn.Embedding(256, 2), nn.Linear(4, 1)
        self._shift = [shift, shift] if shift else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words, numbers = self._choose(x)
        looked_up = self.table((words * 256).long()[:, 0])
        numbers = numbers if self._shift is None else numbers - torch.tensor(self._shift)
        found: torch.Tensor = self.last(torch.cat([looked_up, numbers], 1))
        return found


class Words(nn.Module):
    """All features are places of words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table((x * 256).long()).sum(1)
        return found


@pytest.mark.parametrize("choice", CHOICES)
def test_numbers_beside_words_that_are_looked_up_enter_centred_and_scaled_and_the_words_as_they_are(
    choice: str,
) -> None:
    module = Chosen(CHOICES[choice])
    before = as_onnx(module, 3)
    found = standardise(before, Loss.MSE, PANEL)
    assert "centred and scaled" in found.told
    model = parse(found.model, num_features=3)
    assert choose_engine(model, Loss.MSE, CLIP, None).path == "exact"

    def entering(column: int) -> list[NDArray[np.float32]]:
        with torch.no_grad():
            module.last.weight[:] = torch.eye(4)[column]
            module.last.bias[:] = 0
        changed = {name: value.numpy() for name, value in module.state_dict().items()}
        models = ((file, parse(file, num_features=3)) for file in (before, found.model))
        return [
            predict(replace_parameters(file, one, [changed[p.name] for p in one.parameters]), PANEL.features)[
                :, 0
            ]
            for file, one in models
        ]

    for column in range(2):
        as_it_was, standardised = entering(column)
        np.testing.assert_array_equal(as_it_was, standardised)
    for column in (2, 3):
        as_it_was, standardised = entering(column)
        np.testing.assert_array_equal(as_it_was, PANEL.features[:, column - 1] / np.float32(256))
        assert abs(standardised.mean()) < 0.2
    assert 0.2 < entering(2)[1].std() < 0.45


@pytest.mark.parametrize("module", [Words(), *(Chosen(choose, shift=0.5) for choose in CHOICES.values())])
def test_networks_of_words_alone_or_that_centre_the_numbers_themselves_get_short_rows_only(
    module: nn.Module,
) -> None:
    before = as_onnx(module, 3)
    found = standardise(before, Loss.MSE, PANEL)
    assert found.told == "the network is untrained, so its tables of words are scaled down"
    was, now = (
        {one.name: numpy_helper.to_array(one) for one in onnx.ModelProto.FromString(file).graph.initializer}
        for file in (before, found.model)
    )
    assert was.keys() == now.keys()
    changed = [name for name, values in was.items() if not np.array_equal(values, now[name])]
    assert len(changed) == sum(isinstance(one, nn.Embedding) for one in module.modules())
    for name in changed:
        np.testing.assert_array_equal(now[name], was[name] / 8)


@pytest.mark.parametrize("deviation", [0.05, 0.25])
def test_rows_that_their_author_made_short_stay(deviation: float) -> None:
    module = Words()
    for one in module.modules():
        if isinstance(one, nn.Embedding):
            nn.init.normal_(one.weight, std=deviation)
    before = as_onnx(module, 3)
    found = standardise(before, Loss.MSE, PANEL)
    assert not found.told
    np.testing.assert_array_equal(predict(found.model, PANEL.features), predict(before, PANEL.features))


def test_a_table_that_is_read_as_numbers_too_keeps_its_entries() -> None:
    table = np.random.default_rng(1).standard_normal((256, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "byte"], ["bytes"]),
        helper.make_node("Cast", ["bytes"], ["codes"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "codes"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "last"], ["entries"], keepdims=0),
        helper.make_node("ReduceSum", ["table", "all"], ["whole"], keepdims=1),
        helper.make_node("Gemm", ["entries", "weight"], ["y"]),
    ]
    constants = {"table": table, "byte": np.float32(256), "weight": np.ones((3, 1), np.float32)}
    constants |= {"last": np.array([2]), "all": np.array([0, 1])}

    def told(nodes: list[onnx.NodeProto]) -> str:
        graph = helper.make_graph(
            nodes,
            "tables",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["records", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["records", 1])],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return standardise(model.SerializeToString(), Loss.MSE, PANEL).told

    assert told([one for one in nodes if one.output[0] != "whole"])
    nodes[-1].output[0] = "product"
    assert not told([*nodes, helper.make_node("Add", ["product", "whole"], ["y"])])


@pytest.mark.parametrize("are_numbers_in_tables", [True, False])
def test_the_default_network_stays(*, are_numbers_in_tables: bool) -> None:
    columns = {"word": ["a", "b", "c"] * 30, "number": [str(n) for n in range(90)]}
    encoder = fit(columns, FitSettings())
    features = encoder.features(columns)
    encoded = table_network(
        encoder, hidden=(), outputs=1, seed=1, are_numbers_in_tables=are_numbers_in_tables
    )
    panel = EvalSet(features=features, labels=(np.arange(90) < 9).astype(np.int64))
    assert not standardise(encoded, LOSS, panel).told


@pytest.mark.parametrize("logit", [-5_000.0, 5_000.0])
def test_a_bias_far_off_is_no_error(logit: float) -> None:
    before = network(1)
    model = parse(before, num_features=3)
    values = [np.zeros((1, 3), np.float32), np.array([logit], np.float32)]
    found = standardise(replace_parameters(before, model, values), LOSS, PANEL)
    assert "centred and scaled" in found.told
    assert parse(found.model, num_features=3).num_parameters == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_outputs_that_are_no_numbers_are_no_error() -> None:
    values = [np.full((8, 3), 3e38, np.float32), np.zeros(8, np.float32)]
    values += [np.full((1, 8), -3e38, np.float32), np.zeros(1, np.float32)]
    before = network(8, 1)
    found = standardise(replace_parameters(before, parse(before, num_features=3), values), LOSS, PANEL).model
    assert parse(found, num_features=3).num_parameters == 41


def of_nodes(*nodes: onnx.NodeProto, **constants: NDArray[np.float32]) -> bytes:
    made = [
        helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value))
        for name, value in constants.items()
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [3, 1], [0.1, 0.2, 0.3]),
        helper.make_tensor("table", TensorProto.FLOAT, [256, 1], [0.1 * n for n in range(256)]),
    ]
    used = [one for one in weights if any(one.name in node.input for node in nodes)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", w]) for n, w in (("x", 3), ("y", 1))]
    graph = helper.make_graph([*made, *nodes], "g", ends[:1], ends[1:], initializer=used)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(
            of_nodes(
                helper.make_node("Sub", ["x", "means"], ["a"]),
                helper.make_node("Mul", ["a", "scales"], ["b"]),
                helper.make_node("MatMul", ["b", "w"], ["y"]),
                means=np.array([0.01, 0.5, 0.03], np.float32),
                scales=np.array([80, 3, 90], np.float32),
            ),
            id="scales of its own",
        ),
        pytest.param(b"no model", id="no model"),
        pytest.param(dense_network([4, 1], "relu", seed=1), id="another width"),
    ],
)
def test_files_that_scale_their_features_or_do_not_fit_stay_as_they_are(encoded: bytes) -> None:
    found = standardise(encoded, LOSS, PANEL)
    assert found.model == encoded
    assert not found.told


def test_with_weights_an_untrained_network_begins_at_the_base_rate_that_they_make() -> None:
    before = network(8, 1)
    output = onnx.ModelProto.FromString(before).graph.output[0].name
    weighted = Heads.of([{"output": output, "targets": [0, 1], "weights": [1, 5]}])
    found = standardise(before, weighted, PANEL)
    rate = 5 * 48.5 / (5 * 48.5 + 352.5)
    assert mean_prediction(found.model) == pytest.approx(rate, rel=0.02)
    assert f"begins at the panel's base rate by the classes' weights, {rate:.3g}" in found.told
    inverted = Heads.of([{"output": output, "targets": [1, 0]}])
    assert standardise(before, inverted, PANEL).told == ""

"""Several heads: both engines sum what the job's table says, within one clip."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch.func import grad

from helper.gradient.choose import choose_engine
from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.general.engine import GeneralEngine
from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.errors import InvalidModel, InvalidTask, JobReason, JobRefused, ModelReason
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, check_trained
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.gradient.exact.checks import expected
from tests.helper.gradient.exact.graphs import Example, GraphBuilder, example, loss_of, quantised

CLIP = Clip(norm=Norm.L2, bound=0.8, frac_bits=32)
WIDE = Clip(norm=Norm.L2, bound=1000.0, frac_bits=24)
CODES = 4
FUNNEL: list[dict[str, Any]] = [
    {"name": "click", "output": "out[0]", "targets": [0, 1, 1, 1], "weights": [0.5, 1, 1, 2]},
    {"name": "sale", "output": "out[1]", "targets": [None, 0, 1, 1]},
]
OTHERS: list[dict[str, Any]] = [
    {"name": "value", "output": "out[0]", "loss": "mse", "targets": [-1.5, None, 2.25, 8]},
    {
        "name": "count",
        "output": "out[1]",
        "loss": "poisson",
        "targets": [0, 1, 3, None],
        "weights": [3, 0, 1, 1],
    },
]
CLASSES: list[dict[str, Any]] = [{"output": "out", "loss": "cross_entropy", "targets": [2, None, 0, 1]}]


def network(outputs: int) -> Model:
    graph = GraphBuilder(6, seed=1)
    graph.gemm(graph.node("Relu", graph.gemm("x", 6, 5)), 5, outputs)
    graph.nodes[-1].output[0] = "out"
    return graph.model("out", outputs)


def records(count: int, model: Model, seed: int = 1) -> Example:
    """Records with labels of all codes."""
    made = example(count, model, Loss.MSE, 2, seed=seed)
    made.labels[:] %= CODES
    return made


def summed(engine: ExactEngine | GeneralEngine, model: Model, made: Example) -> np.ndarray[Any, Any]:
    got = [engine.masked_sum(quantised(model), made.batch(helper)).vector for helper in (0, 1)]
    return np.asarray(reconstruct(*got))


def autograd(model: Model, heads: Heads, clip: Clip, made: Example) -> np.ndarray[Any, Any]:
    """The clipped sum over real labels of the gradient of the weighted sum of losses."""
    interpreter = Interpreter(model)
    parameters = [torch.from_numpy(weight.to_float()) for weight in quantised(model)]
    total = np.zeros(model.num_parameters)
    for features, labels, real in zip(made.features, made.labels, made.real, strict=True):
        if real < 0:
            continue
        x, code = torch.from_numpy(features / 256.0), int(labels[real])

        def loss(*given: torch.Tensor, x: torch.Tensor = x, code: int = code) -> torch.Tensor:
            z, whole = interpreter.evaluate(given, x), torch.zeros((), dtype=torch.float64)
            for head in heads.heads:
                target = head.targets[code]
                if target is None:
                    continue
                one = int(head.output[4]) if "[" in head.output else None
                part = z if one is None else z[one : one + 1]
                said = target / 65536 if one is not None else target // 65536
                whole = whole + head.weights[code] / 65536 * loss_of(head.loss, part, said)  # type: ignore[arg-type]
            return whole

        found = grad(loss, argnums=tuple(range(len(parameters))))(*parameters)
        flat = torch.cat([one.reshape(-1) for one in found]).numpy()
        norm = np.linalg.norm(flat)
        total += flat * min(1.0, clip.bound / norm if norm else 1.0)
    return total


@pytest.mark.parametrize("clip", [CLIP, WIDE], ids=["clipped", "whole"])
@pytest.mark.parametrize(("settings", "outputs"), [(FUNNEL, 2), (OTHERS, 2), (CLASSES, 3), (FUNNEL[:1], 1)])
def test_the_exact_path_sums_what_the_table_says(
    settings: list[dict[str, Any]], outputs: int, clip: Clip
) -> None:
    model, heads = network(outputs), Heads.of(settings)
    made = records(14, model)
    check_trained(model, heads, CODES)
    got = summed(ExactEngine(model, heads, clip), model, made)
    assert got.tolist() == expected(model, clip, heads, made).total
    want = autograd(model, heads, clip, made)
    found = np.ldexp(to_signed(got).astype(np.float64), -clip.frac_bits)
    assert np.linalg.norm(found - want) <= 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize(("settings", "outputs"), [(FUNNEL, 2), (OTHERS, 2), (CLASSES, 3)])
def test_the_general_path_sums_the_same(settings: list[dict[str, Any]], outputs: int) -> None:
    model, heads = network(outputs), Heads.of(settings)
    made = records(9, model)
    got = summed(GeneralEngine(model, heads, CLIP, CODES), model, made)
    want = autograd(model, heads, CLIP, made)
    found = np.ldexp(to_signed(got).astype(np.float64), -CLIP.frac_bits)
    assert np.linalg.norm(found - want) <= 1e-4 * np.linalg.norm(want)


def test_one_head_without_weights_is_the_loss_itself() -> None:
    model = network(1)
    made = records(12, model)
    made.labels[:] %= 2
    heads = Heads.of([{"output": "out", "targets": [0, 1]}])
    plain = ExactEngine(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, WIDE)
    found, want = summed(ExactEngine(model, heads, WIDE), model, made), summed(plain, model, made)
    scale = np.linalg.norm(to_signed(want).astype(np.float64))
    assert np.linalg.norm((to_signed(found) - to_signed(want)).astype(np.float64)) <= 1e-3 * scale


def test_no_weight_takes_a_value_over_the_clip() -> None:
    model, heads = network(2), Heads.of([{**one, "weights": [1024] * CODES} for one in FUNNEL])
    made = records(8, model)
    expected(model, CLIP, heads, made)  # asserts each record's norm on the way
    shares = np.array([[1, 0]], np.uint64)
    for row in range(len(made.features)):
        one = Batch(features=made.features[[row]], labels=made.labels[[row]], mask_shares=shares)
        vector = to_signed(ExactEngine(model, heads, CLIP).masked_sum(quantised(model), one).vector)
        assert sum(int(value) ** 2 for value in vector) <= CLIP.sensitivity**2


def test_a_label_that_is_no_code_is_refused() -> None:
    model, heads = network(2), Heads.of(FUNNEL)
    made = records(3, model)
    made.labels[1, 1] = CODES
    with pytest.raises(JobRefused, match="outside the 4 codes") as refused:
        ExactEngine(model, heads, CLIP).masked_sum(quantised(model), made.batch(0))
    assert refused.value.reason is JobReason.MALFORMED


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([{**FUNNEL[1], "targets": [0, 1, 1]}], "for 3 label codes, the task has 4"),
        ([{**FUNNEL[1], "targets": [0, 1, 1, 1, 0]}], "for 5 label codes, the task has 4"),
        ([FUNNEL[0], {**FUNNEL[1], "output": "out"}], "needs an output of one column, 'out' has 2"),
        ([{**CLASSES[0], "targets": [0, 1, 1, 0]}, FUNNEL[0]], "read one output"),
        ([{**FUNNEL[0], "output": "logits"}], "the model has 'out' of 2"),
        ([{**FUNNEL[0], "output": "out[2]"}], "the model has 'out' of 2"),
        ([{**FUNNEL[0], "targets": [0, 1, 1, 2]}], "targets from 0 to 1"),
        ([{**CLASSES[0], "targets": [0, 1, 2, 0]}], "classes 0..1"),
        ([{**FUNNEL[0], "loss": "binary_cross_entropy"}], "takes logits"),
    ],
)
def test_heads_that_do_not_fit_are_refused(settings: list[dict[str, Any]], why: str) -> None:
    model = network(2)
    with pytest.raises(InvalidModel, match=why.replace("[", r"\[")) as refused:
        choose_engine(model, Heads.of(settings), CLIP, CODES)
    assert refused.value.reason is ModelReason.WRONG_LOSS


def test_heads_require_classes() -> None:
    with pytest.raises(InvalidModel, match="require a task of classes"):
        check_trained(network(2), Heads.of(FUNNEL), None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([], "at least 1 item"),
        ([FUNNEL[0], {**FUNNEL[1], "output": "out[0]"}], "'out\\[0\\]' is given twice"),
        ([FUNNEL[0], {**FUNNEL[1], "name": "click"}], "'click' is given twice"),
        ([{**FUNNEL[0], "weights": [1, 1, 1, -1]}], "greater than or equal to 0"),
        ([{**FUNNEL[0], "weights": [1, 1, 1, 1025]}], "less than or equal to"),
        ([{**FUNNEL[0], "weights": [1, 1, 1]}], "there are 4 targets and 3 weights"),
        ([{**FUNNEL[0], "weights": [1, 1, 1, 1e-9]}], "nearer to 0 than"),
        ([{**FUNNEL[0], "weights": [1, 1, 1, float("nan")]}], "must be numbers"),
        ([{**FUNNEL[0], "targets": [0, 1, "1", 1]}], "must be numbers"),
        ([{**FUNNEL[0], "targets": [None] * 4}], "a code with a target and a weight above 0"),
        ([{**FUNNEL[0], "loss": "hinge"}], "loss"),
        ([{"output": "out[0]"}], "lacks 'targets'"),
        ([{**FUNNEL[0], "target": [1]}], "unknown setting 'target'"),
        ([{"name": str(i), "output": f"o{i}", "targets": [0, 1]} for i in range(17)], "at most 16 items"),
    ],
)
def test_heads_that_are_wrong_by_themselves_are_refused(settings: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        Heads.of(settings)


def test_outputs_of_a_file_are_heads_by_name() -> None:
    graph = GraphBuilder(6, seed=2)
    trunk = graph.node("Relu", graph.gemm("x", 6, 5))
    names = [graph.gemm(trunk, 5, width) for width in (1, 3)]
    proto = onnx.ModelProto.FromString(graph.encode(names[0], 1))
    proto.graph.output.append(onnx.helper.make_tensor_value_info(names[1], onnx.TensorProto.FLOAT, ["n", 3]))
    model = parse(proto.SerializeToString(), num_features=6)
    assert model.outputs == ((names[0], 1), (names[1], 3))
    assert model.output_width == 4
    proto.graph.output[0].name, proto.graph.output[1].name = names[1], names[0]
    assert parse(proto.SerializeToString(), num_features=6).digest != model.digest
    heads = Heads.of(
        [
            {"output": names[0], "targets": [0, 1, 1, 1]},
            {"output": names[1], "loss": "cross_entropy", "targets": [None, 0, 1, 2]},
        ]
    )
    assert choose_engine(model, heads, CLIP, CODES).path == "exact"
    by_name = summed(ExactEngine(model, heads, CLIP), model, records(6, model))
    assert to_signed(by_name).any()

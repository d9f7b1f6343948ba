"""A `Model` evaluated in float64 by torch, one node at a time, for one record.

What the general path differentiates.

Every function here is made of torch operations that `torch.func` can differentiate and vectorise over
records; none looks at a value. The operators are those of `maskedlark.model.operators`, in normal form.
"""

from collections.abc import Callable, Mapping, Sequence
from math import nan, prod
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from maskedlark.model.graph import Constant, Model, Node

_Attributes: TypeAlias = Mapping[str, Any]  # maskedlark.model.operators fixed their types
_States: TypeAlias = tuple[Tensor, ...]
_Step: TypeAlias = Callable[[Tensor, _States], _States]
_Operator: TypeAlias = Callable[[_Attributes, Sequence[Tensor]], Tensor | Sequence[Tensor]]

_ABSENT: Final = torch.empty(0)
_NOTHING: Final[Mapping[str, Tensor]] = {}
# Of each gate at each step of a recurrence: its sums, its activation and the states that are made of it
_STEP_ENTRIES: Final = 5


class Interpreter:
    """One model, ready to be evaluated with any parameters and record."""

    __slots__ = ("_constants", "_model")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._constants = {name: _tensor(value) for name, value in model.constants.items()}

    def evaluate(self, parameters: Sequence[Tensor], features: Tensor) -> Tensor:
        """Return the outputs for one record.

        Shapes: parameters as the model's, float64; features float64 (d,); the result (output_width,).
        """
        return self.trace(parameters, features)[0]

    def trace(
        self,
        parameters: Sequence[Tensor],
        features: Tensor,
        *,
        given: Mapping[str, Tensor] = _NOTHING,
        added: Mapping[str, Tensor] = _NOTHING,
        names: Sequence[str] = (),
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs for one record, and values of the graph on the way.

        Args:
            parameters: As the model's, float64.
            features: float64 (d,).
            given: Values by name, in place of what a node would compute.
            added: By the name of a node's first output, what is added to it.
            names: Of the values to return.
        """
        values = self._values(self._constants, parameters, features, given, added)
        outputs = values[self._model.output_name].reshape(self._model.output_width)
        return outputs, tuple(values[name] for name in names)

    def values(self, names: Sequence[str], features: Tensor) -> tuple[Tensor, ...]:
        """Return values of the graph for one record that depend on no parameter.

        Raises:
            KeyError: a value depends on a parameter.
        """
        # Only what leads to the names, so that no parameter has to be there.
        needed, nodes = set(names), list[Node]()
        for node in reversed(self._model.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                nodes.append(node)
        values = {**self._constants, self._model.input_name: features.unsqueeze(0)}
        _run(nodes[::-1], values)
        return tuple(values[name] for name in names)

    def count_elements(self) -> int:
        """Count the entries of all values of one record, in recurrences too: what is held in memory.

        Only shapes are computed, so that a model is refused before it takes the memory.
        """
        values = self.shapes()
        within = sum(
            _STEP_ENTRIES * values[node.inputs[0]][0] * values[node.inputs[1]][:2].numel()
            for node in self._model.nodes
            if node.operator in {"LSTM", "GRU"}
        )
        return within + sum(shape.numel() for shape in values.values())

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of every value of the graph for one record, computing no value."""
        values = self._values(
            {name: value.to("meta") for name, value in self._constants.items()},
            [_without_values(parameter.shape) for parameter in self._model.parameters],
            _without_values((self._model.input_width,)),
        )
        return {name: value.shape for name, value in values.items()}

    def _values(
        self,
        constants: Mapping[str, Tensor],
        parameters: Sequence[Tensor],
        features: Tensor,
        given: Mapping[str, Tensor] = _NOTHING,
        added: Mapping[str, Tensor] = _NOTHING,
    ) -> dict[str, Tensor]:
        """Return every value of the graph by name, including parameters and constants."""
        values = {**constants, self._model.input_name: features.unsqueeze(0), **given}
        values.update(zip((parameter.name for parameter in self._model.parameters), parameters, strict=True))
        _run([node for node in self._model.nodes if node.outputs[0] not in given], values, added)
        return values


def _run(nodes: Sequence[Node], values: dict[str, Tensor], added: Mapping[str, Tensor] = _NOTHING) -> None:
    """Evaluate nodes in order, and put their outputs among the values."""
    for node in nodes:
        inputs = [values[name] if name else _ABSENT for name in node.inputs]
        result = _OPERATORS[node.operator](node.attributes, inputs)
        outputs = (result,) if isinstance(result, Tensor) else result
        values.update(zip(node.outputs, outputs, strict=False))  # a node may leave later outputs unnamed
        if node.outputs[0] in added:
            values[node.outputs[0]] = values[node.outputs[0]] + added[node.outputs[0]]


def _without_values(shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=torch.float64, device="meta")


def _tensor(value: Constant) -> Tensor:
    return torch.from_numpy(np.array(value, np.float64 if value.dtype.kind == "f" else value.dtype))


def _gemm(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    left = inputs[0].T if attributes["transA"] else inputs[0]
    right = inputs[1].T if attributes["transB"] else inputs[1]
    product: Tensor = attributes["alpha"] * (left @ right)
    return product + attributes["beta"] * inputs[2] if len(inputs) > 2 else product


def _power(_: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    return torch.pow(inputs[0], inputs[1].to(torch.float64))


def _softplus(_: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    """Return log(1 + e^x) without the cut-off of torch's own softplus."""
    return torch.logaddexp(inputs[0], torch.zeros_like(inputs[0]))


def _prelu(_: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    # Not torch's own prelu, which takes one slope or one a channel: ONNX broadcasts any shape.
    return torch.where(inputs[0] < 0, inputs[1] * inputs[0], inputs[0])


def _cast(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    # 1 is ONNX's float32: all reals of a graph are float64 here.
    return inputs[0].to(torch.float64 if attributes["to"] == 1 else torch.int64)


def _gather(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    """Look up rows; an index outside the table, which only a record can cause, gives NaN.

    Its gradient is dropped as not finite.
    """
    table, indices = inputs
    axis = attributes["axis"]
    size = table.shape[axis]
    is_inside = (indices >= -size) & (indices < size)
    wrapped = torch.where(is_inside, torch.remainder(indices, size), 0)
    shape = (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
    gathered = torch.index_select(table, axis, wrapped.reshape(-1)).reshape(shape)
    if not table.is_floating_point():
        return gathered  # the parser has checked the indices of an integer table
    # A tuple: of one index for all, and no further axis, it is empty.
    outer = is_inside.reshape((*indices.shape, *(1,) * (table.ndim - axis - 1)))
    return torch.where(outer, gathered, nan)


def _slice(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    cuts = [slice(None)] * inputs[0].ndim
    for axis, start, end, step in zip(
        *(attributes[key] for key in ("axes", "starts", "ends", "steps")), strict=True
    ):
        cuts[axis] = slice(start, end, step)
    return inputs[0][tuple(cuts)]


def _pad(data: Tensor, pads: Sequence[int], value: float) -> Tensor:
    """Apply explicit padding.

    ONNX lists all that goes before and then all that goes after; torch goes from the last axis inward.
    """
    half = len(pads) // 2
    order = [pad for axis in reversed(range(half)) for pad in (pads[axis], pads[half + axis])]
    return functional.pad(data, order, value=value) if any(order) else data


def _conv(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    convolve = functional.conv1d if inputs[0].ndim == 3 else functional.conv2d
    # By itself: torch's convolution pads both sides alike, and ONNX need not.
    data = _pad(inputs[0], attributes["pads"], 0.0)
    bias = inputs[2] if len(inputs) > 2 else None
    return convolve(data, inputs[1], bias, stride=attributes["strides"], dilation=attributes["dilations"])


def _max_pool(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    pool = functional.max_pool1d if inputs[0].ndim == 3 else functional.max_pool2d
    # Padding of a maximum is never the largest entry.
    data = _pad(inputs[0], attributes["pads"], -torch.inf)
    return pool(data, attributes["kernel_shape"], attributes["strides"], 0, attributes["dilations"])


def _average_pool(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    """Return the mean of each window; padding counts as zeros, or not at all."""
    pool = functional.avg_pool1d if inputs[0].ndim == 3 else functional.avg_pool2d
    kernel, strides, pads = attributes["kernel_shape"], attributes["strides"], attributes["pads"]
    mean = pool(_pad(inputs[0], pads, 0.0), kernel, strides)
    if attributes["count_include_pad"] or not any(pads):
        return mean
    # The part of each window that is no padding: torch pads alike on both sides, and ONNX need not.
    share = pool(_pad(inputs[0].new_ones(1, 1, *inputs[0].shape[2:]), pads, 0.0), kernel, strides)
    return mean / share


def _batch_normalization(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    data = inputs[0]
    scale, bias, mean, variance = (value.reshape(1, -1, *(1,) * (data.ndim - 2)) for value in inputs[1:])
    return (data - mean) / torch.sqrt(variance + attributes["epsilon"]) * scale + bias


def _layer_normalization(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    axes = tuple(range(attributes["axis"], inputs[0].ndim))
    centred = inputs[0] - inputs[0].mean(axes, keepdim=True)
    # Of what is centred: a difference of mean squares would lose a small variance's digits.
    variance = (centred * centred).mean(axes, keepdim=True)
    scaled = centred / torch.sqrt(variance + attributes["epsilon"]) * inputs[1]
    return scaled + inputs[2] if len(inputs) > 2 else scaled


def _reduce_mean(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    axes = attributes["axes"]
    return (
        _reduce_sum(attributes, inputs) / prod(inputs[0].shape[axis] for axis in axes) if axes else inputs[0]
    )


def _reduce_sum(attributes: _Attributes, inputs: Sequence[Tensor]) -> Tensor:
    return (
        inputs[0].sum(attributes["axes"], keepdim=bool(attributes["keepdims"]))
        if attributes["axes"]
        else inputs[0]
    )


def _lstm(attributes: _Attributes, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return every hidden state (steps, directions, records, hidden), the last one, the last cell state.

    Source: the equations of the ONNX operators LSTM and GRU. Gates lie in ONNX's order: input, output,
    forget, cell; and update, reset, hidden.
    """

    def step_of(recurrence: Tensor, bias: Tensor) -> _Step:
        offset = bias.reshape(2, -1).sum(0)

        def step(projected: Tensor, states: _States) -> _States:
            hidden, cell = states
            gates = projected + hidden @ recurrence.T + offset
            enter, leave, keep, candidate = gates.chunk(4, -1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            return torch.sigmoid(leave) * torch.tanh(cell), cell

        return step

    return _recur(attributes, inputs, step_of, num_states=2)


def _gru(attributes: _Attributes, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return every hidden state (steps, directions, records, hidden), and the last one."""

    def step_of(recurrence: Tensor, bias: Tensor) -> _Step:
        before, after = bias.reshape(2, -1)
        split = 2 * attributes["hidden_size"]  # update and reset before it, the candidate after
        to_gates, to_candidate = recurrence[:split], recurrence[split:]
        gates_bias, candidate_bias = after[:split], after[split:]

        def step(projected: Tensor, states: _States) -> _States:
            (hidden,) = states
            entering = projected + before
            gates_in, candidate_in = entering[:, :split], entering[:, split:]
            update, reset = torch.sigmoid(gates_in + hidden @ to_gates.T + gates_bias).chunk(2, -1)
            if attributes["linear_before_reset"]:
                candidate = torch.tanh(candidate_in + reset * (hidden @ to_candidate.T + candidate_bias))
            else:
                candidate = torch.tanh(candidate_in + (reset * hidden) @ to_candidate.T + candidate_bias)
            return ((1 - update) * candidate + update * hidden,)

        return step

    return _recur(attributes, inputs, step_of, num_states=1)


def _recur(
    attributes: _Attributes,
    inputs: Sequence[Tensor],
    step_of: Callable[[Tensor, Tensor], _Step],
    num_states: int,
) -> Sequence[Tensor]:
    """Run each direction over the steps.

    Shapes: inputs as ONNX orders them: data (steps, records, width), weights, recurrences, biases, lengths
        (absent), start states.
    """
    # Written out step by step, because torch's own cells cannot be vectorised over records by torch.func.
    data, weights, recurrences, biases, _, *starts = inputs
    steps, records, _ = data.shape
    directions, hidden = len(weights), attributes["hidden_size"]
    results, lasts = [], []
    for direction in range(directions):
        backward = direction == 1 or attributes["direction"] == "reverse"
        # Absent inputs are tensors without entries.
        bias = biases[direction] if biases.numel() else data.new_zeros(2 * weights.shape[1])
        step = step_of(recurrences[direction], bias)
        states = tuple(
            start[direction] if start.numel() else data.new_zeros(records, hidden)
            for start in starts[:num_states]
        )
        # One product for all steps, since none of it depends on a state.
        projected = data @ weights[direction].T
        every: list[Tensor] = []
        for position in reversed(range(steps)) if backward else range(steps):
            states = step(projected[position], states)
            every.append(states[0])
        # A backward direction's states lie at the positions of their inputs, not as they came.
        results.append(torch.stack(every[::-1] if backward else every))
        lasts.append(states)
    return [
        torch.stack(results, 1),
        *(torch.stack([states[i] for states in lasts]) for i in range(num_states)),
    ]


_OPERATORS: Final[Mapping[str, _Operator]] = {
    "Add": lambda _, inputs: inputs[0] + inputs[1],
    "Sub": lambda _, inputs: inputs[0] - inputs[1],
    "Mul": lambda _, inputs: inputs[0] * inputs[1],
    "Div": lambda _, inputs: inputs[0] / inputs[1],
    "Pow": _power,
    "Greater": lambda _, inputs: inputs[0] > inputs[1],
    "Where": lambda _, inputs: torch.where(inputs[0], inputs[1], inputs[2]),
    "Clip": lambda attributes, inputs: torch.clamp(inputs[0], attributes.get("min"), attributes.get("max")),
    "Cast": _cast,
    "Relu": lambda _, inputs: torch.relu(inputs[0]),
    "Sigmoid": lambda _, inputs: torch.sigmoid(inputs[0]),
    "Tanh": lambda _, inputs: torch.tanh(inputs[0]),
    "Softplus": _softplus,
    "Sqrt": lambda _, inputs: torch.sqrt(inputs[0]),
    "Exp": lambda _, inputs: torch.exp(inputs[0]),
    "Log": lambda _, inputs: torch.log(inputs[0]),
    "Erf": lambda _, inputs: torch.erf(inputs[0]),
    "LeakyRelu": lambda attributes, inputs: functional.leaky_relu(inputs[0], attributes["alpha"]),
    "Elu": lambda attributes, inputs: functional.elu(inputs[0], attributes["alpha"]),
    "Gelu": lambda attributes, inputs: functional.gelu(inputs[0], approximate=attributes["approximate"]),
    "PRelu": _prelu,
    "Softmax": lambda attributes, inputs: torch.softmax(inputs[0], attributes["axis"]),
    "LogSoftmax": lambda attributes, inputs: torch.log_softmax(inputs[0], attributes["axis"]),
    "Gemm": _gemm,
    "MatMul": lambda _, inputs: inputs[0] @ inputs[1],
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "ReduceMean": _reduce_mean,
    "ReduceSum": _reduce_sum,
    "LSTM": _lstm,
    "GRU": _gru,
    "Reshape": lambda attributes, inputs: inputs[0].reshape(attributes["shape"]),
    "Transpose": lambda attributes, inputs: inputs[0].permute(attributes["perm"]),
    "Expand": lambda attributes, inputs: inputs[0].expand(attributes["shape"]),
    "Concat": lambda attributes, inputs: torch.cat(tuple(inputs), attributes["axis"]),
    "Slice": _slice,
    "Split": lambda attributes, inputs: torch.split(inputs[0], list(attributes["split"]), attributes["axis"]),
    "Gather": _gather,
    "GatherND": lambda _, inputs: inputs[0][tuple(inputs[1].movedim(-1, 0))],
}

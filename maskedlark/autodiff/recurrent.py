"""LSTM and GRU cells for the interpreter.

They are written out step by step, so that torch.func can vectorise them over records.

Source: the equations of the ONNX operators LSTM and GRU. Gates lie in ONNX's order: input, output, forget,
cell; and update, reset, hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

_Attributes: TypeAlias = Mapping[str, Any]  # maskedlark.model.operators fixed their types
_States: TypeAlias = tuple[Tensor, ...]
_Step: TypeAlias = Callable[[Tensor, _States], _States]


def lstm(attributes: _Attributes, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return every hidden state (steps, directions, records, hidden), the last one, the last cell state."""

    def step_of(recurrence: Tensor, bias: Tensor) -> _Step:
        offset = bias.reshape(2, -1).sum(0)

        def step(projected: Tensor, states: _States) -> _States:
            hidden, cell = states
            gates = projected + hidden @ recurrence.T + offset
            enter, leave, keep, candidate = gates.chunk(4, -1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            return torch.sigmoid(leave) * torch.tanh(cell), cell

        return step

    return _run(attributes, inputs, step_of, num_states=2)


def gru(attributes: _Attributes, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
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

    return _run(attributes, inputs, step_of, num_states=1)


def _run(
    attributes: _Attributes,
    inputs: Sequence[Tensor],
    step_of: Callable[[Tensor, Tensor], _Step],
    num_states: int,
) -> Sequence[Tensor]:
    """Run each direction over the steps.

    Shapes: inputs as ONNX orders them: data (steps, records, width), weights, recurrences, biases, lengths
        (absent), start states.
    """
    data, weights, recurrences, biases, _, *starts = inputs
    steps, records, _ = data.shape
    directions, hidden = len(weights), attributes["hidden_size"]
    results, lasts = [], []
    for direction in range(directions):
        backward = direction == 1 or attributes["direction"] == "reverse"
        bias = biases[direction] if biases.numel() else data.new_zeros(2 * weights.shape[1])
        step = step_of(recurrences[direction], bias)
        states = tuple(
            start[direction] if start.numel() else data.new_zeros(records, hidden)
            for start in starts[:num_states]
        )
        projected = data @ weights[direction].T
        every: list[Tensor] = []
        for position in reversed(range(steps)) if backward else range(steps):
            states = step(projected[position], states)
            every.append(states[0])
        results.append(torch.stack(every[::-1] if backward else every))
        lasts.append(states)
    return [
        torch.stack(results, 1),
        *(torch.stack([states[i] for states in lasts]) for i in range(num_states)),
    ]

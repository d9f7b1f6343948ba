"""Rules of LSTM and GRU.

Unidirectional or both ways, no peepholes, no sequence lengths, the default activations.
"""

from collections.abc import Mapping
from typing import Final

from maskedlark.errors import ModelReason
from maskedlark.model.operators.call import (
    Attribute,
    CheckedCall,
    Operator,
    OperatorCall,
    ValueKind,
    ValueType,
    defaults,
)

_GATES: Final = {"LSTM": 4, "GRU": 3}
_ACTIVATIONS: Final = {"LSTM": "Sigmoid,Tanh,Tanh", "GRU": "Sigmoid,Tanh"}
_DIRECTIONS: Final = {"forward": 1, "reverse": 1, "bidirectional": 2}
_NUM_INPUTS: Final = {"LSTM": 7, "GRU": 6}


def _recurrent(call: OperatorCall) -> CheckedCall:
    """Check LSTM and GRU.

    Shapes: data (steps, records, width); weights (directions, gates * hidden, width or hidden); bias
        (directions, 2 * gates * hidden); states (directions, records, hidden); results (steps, directions,
        records, hidden) and the last states.
    """
    directions = _check_attributes(call)
    gates, hidden = _GATES[call.operator], call.attributes.get("hidden_size")
    data = call.shape()
    if len(data) != 3 or not isinstance(hidden, int) or hidden < 1:
        call.refuse("the data must be (steps, records, width) and hidden_size positive")
    steps, records, width = data
    wanted = {
        1: (gates * hidden, width),
        2: (gates * hidden, hidden),
        3: (2 * gates * hidden,),
        5: (records, hidden),
        6: (records, hidden),
    }
    for position in range(len(call.inputs)):
        if not call.has(position):
            continue
        if position == 4:
            call.refuse("sequence lengths are not supported", ModelReason.UNSUPPORTED_ATTRIBUTE)
        call.require_kind(ValueKind.FLOAT, position)
        if position and call.shape(position) != (directions, *wanted[position]):
            call.refuse(
                f"input {position} has shape {call.shape(position)}, not {(directions, *wanted[position])}"
            )
    state = ValueType(ValueKind.FLOAT, (directions, records, hidden))
    attributes = {"hidden_size": hidden, "direction": call.attributes["direction"]}
    if call.operator == "GRU":
        attributes["linear_before_reset"] = int(bool(call.integer("linear_before_reset")))
    return call.check(
        ValueType(ValueKind.FLOAT, (steps, directions, records, hidden)),
        state,
        state,  # of an LSTM its cell; a GRU has no third output that a node could name
        # Engines read inputs by position: absent ones at the end are empty names too.
        inputs=(call.inputs + ("",) * 7)[: _NUM_INPUTS[call.operator]],
        attributes=attributes,
        multiplications=steps * directions * records * gates * hidden * (width + hidden),
    )


def _check_attributes(call: OperatorCall) -> int:
    """Refuse what is not the plain cell; return the number of directions."""
    directions = _DIRECTIONS.get(str(call.attributes["direction"]))
    # The list that a file may write out: the defaults, once for each direction.
    activations = ",".join(filter(None, [_ACTIVATIONS[call.operator]] * (directions or 0)))
    if directions is None or call.attributes.get("activations", activations) != activations:
        call.refuse("the direction or an activation is not supported", ModelReason.UNSUPPORTED_ATTRIBUTE)
    if call.integer("layout") or call.attributes.get("input_forget", 0):
        call.refuse("layout and input_forget must be 0", ModelReason.UNSUPPORTED_ATTRIBUTE)
    return directions


def _row(flag: str, *, max_inputs: int, max_outputs: int) -> Operator:
    """Describe LSTM or GRU, which differ in one flag and in their inputs and outputs."""
    return Operator(
        rule=_recurrent,
        min_inputs=3,
        max_inputs=max_inputs,
        max_outputs=max_outputs,
        attributes={
            "hidden_size": Attribute(int),
            "activations": Attribute(str, is_list=True),
            **defaults(direction="forward", layout=0),
            flag: Attribute(int, 0),
        },
        parameters=frozenset({1, 2, 3}),
    )


OPERATORS: Final[Mapping[str, Operator]] = {
    "LSTM": _row("input_forget", max_inputs=7, max_outputs=3),
    "GRU": _row("linear_before_reset", max_inputs=6, max_outputs=2),
}

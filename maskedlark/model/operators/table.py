"""The allow-list: every operator that a model may use, with the attributes that it may carry.

What is not in this table is refused. `parameters` are the inputs whose float32 initializers are trained;
`carries` are the inputs that are only moved to the output, so that a weight which is transposed or reshaped
on its way is still found.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

import numpy as np

from maskedlark.frozen import frozen
from maskedlark.model.graph import AttributeValue
from maskedlark.model.operators import elementwise, layers, layout, recurrent
from maskedlark.model.operators.call import CheckedCall, OperatorCall

Rule = Callable[[OperatorCall], CheckedCall]


@frozen
class Attribute:
    """One attribute: its type, whether it is a list, and its default, if it has one.

    The type is that of its entries: `Tensor` for a tensor.
    """

    type: type
    default: AttributeValue | None = None
    is_list: bool = False


@frozen
class Operator:
    """One row of the allow-list.

    A node may have `min_inputs` to `max_inputs` inputs and up to `max_outputs` outputs.

    Without a rule it never reaches an engine: `maskedlark.model.resolve` replaces it by a constant or by its
    input.
    """

    rule: Rule | None
    min_inputs: int = 1
    max_inputs: int = 1
    max_outputs: int = 1
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parameters: frozenset[int] = frozenset()
    carries: frozenset[int] = frozenset()


Tensor: Final = np.ndarray
"""The type of an attribute that holds a tensor."""


def _integer(default: int | None = None) -> Attribute:
    return Attribute(type=int, default=default)


def _float(default: float) -> Attribute:
    return Attribute(type=float, default=default)


def _text(default: str) -> Attribute:
    return Attribute(type=str, default=default)


_INTEGERS: Final = Attribute(type=int, is_list=True)
_MANY: Final = 256
_END: Final = 1 << 31  # past every rank
_FIRST: Final = frozenset({0})
_BOTH: Final = frozenset({0, 1})

_WINDOW: Final = {
    "auto_pad": _text("NOTSET"),
    "kernel_shape": _INTEGERS,
    "strides": _INTEGERS,
    "pads": _INTEGERS,
    "dilations": _INTEGERS,
}
_POOL: Final = {**_WINDOW, "ceil_mode": _integer(0)}
_REDUCE: Final = {"axes": _INTEGERS, "keepdims": _integer(1), "noop_with_empty_axes": _integer(0)}


def _recurrent(flag: str, *, max_inputs: int, max_outputs: int) -> Operator:
    """Describe LSTM or GRU, which differ in one flag and in their inputs and outputs."""
    return Operator(
        rule=recurrent.recurrent,
        min_inputs=3,
        max_inputs=max_inputs,
        max_outputs=max_outputs,
        attributes={
            "hidden_size": _integer(),
            "direction": _text("forward"),
            "layout": _integer(0),
            "activations": Attribute(type=str, is_list=True),
            flag: _integer(0),
        },
        parameters=frozenset({1, 2, 3}),
    )


_ACTIVATION: Final = Operator(rule=elementwise.activation)
_ARITHMETIC: Final = Operator(rule=elementwise.arithmetic, min_inputs=2, max_inputs=2, parameters=_BOTH)
_SOFTMAX: Final = Operator(rule=layers.softmax, attributes={"axis": _integer()})
_RESHAPE: Final = Operator(
    rule=layout.reshape,
    max_inputs=2,
    attributes={"shape": _INTEGERS, "allowzero": _integer(0)},
    carries=_FIRST,
)
_AXES: Final = {"axes": _INTEGERS}

OPERATORS: Final[Mapping[str, Operator]] = {
    # arithmetic
    "Add": _ARITHMETIC,
    "Sub": _ARITHMETIC,
    "Mul": _ARITHMETIC,
    "Div": _ARITHMETIC,
    "Pow": Operator(rule=elementwise.power, min_inputs=2, max_inputs=2, parameters=_FIRST),
    "Mod": Operator(rule=elementwise.modulo, min_inputs=2, max_inputs=2, attributes={"fmod": _integer(0)}),
    "Greater": Operator(rule=elementwise.greater, min_inputs=2, max_inputs=2),
    "Where": Operator(rule=elementwise.where, min_inputs=3, max_inputs=3, carries=frozenset({1, 2})),
    "Clip": Operator(rule=elementwise.clip, max_inputs=3),
    "Cast": Operator(
        rule=elementwise.cast, attributes={"to": _integer(), "saturate": _integer(1)}, carries=_FIRST
    ),
    # activations
    "Relu": _ACTIVATION,
    "Sigmoid": _ACTIVATION,
    "Tanh": _ACTIVATION,
    "Softplus": _ACTIVATION,
    "Sqrt": _ACTIVATION,
    "Exp": _ACTIVATION,
    "Log": _ACTIVATION,
    "Erf": _ACTIVATION,
    "LeakyRelu": Operator(rule=elementwise.activation, attributes={"alpha": _float(0.01)}),
    "Elu": Operator(rule=elementwise.activation, attributes={"alpha": _float(1.0)}),
    "Gelu": Operator(rule=elementwise.gelu, attributes={"approximate": _text("none")}),
    "PRelu": Operator(rule=elementwise.prelu, min_inputs=2, max_inputs=2, parameters=frozenset({1})),
    "Softmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
    # layers
    "Gemm": Operator(
        rule=layers.gemm,
        min_inputs=2,
        max_inputs=3,
        attributes={"alpha": _float(1.0), "beta": _float(1.0), "transA": _integer(0), "transB": _integer(0)},
        parameters=frozenset({0, 1, 2}),
    ),
    "MatMul": Operator(rule=layers.matmul, min_inputs=2, max_inputs=2, parameters=_BOTH),
    "Conv": Operator(
        rule=layers.conv,
        min_inputs=2,
        max_inputs=3,
        attributes={**_WINDOW, "group": _integer(1)},
        parameters=frozenset({1, 2}),
    ),
    "MaxPool": Operator(rule=layers.pool, attributes={**_POOL, "storage_order": _integer(0)}),
    "AveragePool": Operator(rule=layers.pool, attributes={**_POOL, "count_include_pad": _integer(0)}),
    "GlobalAveragePool": Operator(rule=layers.global_average_pool),
    "BatchNormalization": Operator(
        rule=layers.batch_normalization,
        min_inputs=5,
        max_inputs=5,
        attributes={"epsilon": _float(1e-5), "momentum": _float(0.9), "training_mode": _integer(0)},
        parameters=frozenset({1, 2}),
    ),
    "LayerNormalization": Operator(
        rule=layers.layer_normalization,
        min_inputs=2,
        max_inputs=3,
        attributes={"axis": _integer(-1), "epsilon": _float(1e-5), "stash_type": _integer(1)},
        parameters=frozenset({1, 2}),
    ),
    "ReduceMean": Operator(rule=layers.reduce, max_inputs=2, attributes=_REDUCE),
    "ReduceSum": Operator(rule=layers.reduce, max_inputs=2, attributes=_REDUCE),
    "LSTM": _recurrent("input_forget", max_inputs=7, max_outputs=3),
    "GRU": _recurrent("linear_before_reset", max_inputs=6, max_outputs=2),
    # resolved while parsing
    "Constant": Operator(
        rule=None,
        min_inputs=0,
        max_inputs=0,
        attributes={
            "value": Attribute(type=Tensor),
            "value_int": _integer(),
            "value_ints": _INTEGERS,
            "value_float": Attribute(type=float),
            "value_floats": Attribute(type=float, is_list=True),
        },
    ),
    "ConstantOfShape": Operator(rule=None, attributes={"value": Attribute(type=Tensor)}),
    "Shape": Operator(rule=None, attributes={"start": _integer(0), "end": _integer(_END)}),
    "Identity": Operator(rule=None, carries=_FIRST),
    "Dropout": Operator(
        rule=None,
        max_inputs=3,
        max_outputs=2,
        attributes={"ratio": _float(0.5), "seed": _integer(0)},
        carries=_FIRST,
    ),
    # layout
    "Reshape": _RESHAPE,
    "Flatten": Operator(rule=layout.flatten, attributes={"axis": _integer(1)}, carries=_FIRST),
    "Squeeze": Operator(rule=layout.squeeze, max_inputs=2, attributes=_AXES, carries=_FIRST),
    "Unsqueeze": Operator(rule=layout.unsqueeze, max_inputs=2, attributes=_AXES, carries=_FIRST),
    "Transpose": Operator(rule=layout.transpose, attributes={"perm": _INTEGERS}, carries=_FIRST),
    "Expand": Operator(rule=layout.expand, min_inputs=2, max_inputs=2, carries=_FIRST),
    "Concat": Operator(
        rule=layout.concat,
        max_inputs=_MANY,
        attributes={"axis": _integer(0)},
        carries=frozenset(range(_MANY)),
    ),
    "Slice": Operator(rule=layout.slice_, min_inputs=3, max_inputs=5, carries=_FIRST),
    "Split": Operator(
        rule=layout.split,
        max_inputs=2,
        max_outputs=_MANY,
        attributes={"axis": _integer(0), "split": _INTEGERS, "num_outputs": _integer()},
        carries=_FIRST,
    ),
    "Gather": Operator(
        rule=layout.gather, min_inputs=2, max_inputs=2, attributes={"axis": _integer(0)}, parameters=_FIRST
    ),
    "GatherND": Operator(
        rule=layout.gather_nd,
        min_inputs=2,
        max_inputs=2,
        attributes={"batch_dims": _integer(0)},
        carries=_FIRST,
    ),
}
"""By ONNX name."""

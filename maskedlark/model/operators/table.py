"""The allow-list: every operator that a model may use, by its ONNX name. What is not in it is refused."""

from collections.abc import Mapping
from typing import Final

from maskedlark.model.operators import elementwise, layers, layout, recurrent
from maskedlark.model.operators.call import INTEGERS, Attribute, Operator, Tensor, defaults

INSTEAD_OF_REFUSED: Final = {
    "Abs": "relu(x) + relu(-1 * x)",
    "ArgMax": "the values themselves: the loss cross_entropy compares them",
    "ConvTranspose": "a convolution",
    "Einsum": "a matrix product and transpose",
    "Equal": "a table (nn.Embedding) that is looked up at the code",
    "Floor": "(x * 256).long(), which is whole without it",
    "HardSigmoid": "sigmoid",
    "HardSwish": "relu or elu",
    "InstanceNormalization": "LayerNorm",
    "Less": "relu or sigmoid of the difference",
    "Max": "a + relu(b - a)",
    "Min": "a - relu(a - b)",
    "Mish": "elu",
    "Neg": "-1 * x",
    "OneHot": "a table (nn.Embedding) that is looked up at the code",
    "Pad": "the padding of the convolution",
    "RNN": "a GRU or LSTM",
    "ReduceMax": "max pooling over the whole axis (torch.max_pool1d)",
    "Round": "(x * 256).long(), which is whole without it",
    "Selu": "elu",
}
"""What to write in place of operators that people use most among those that are refused."""

_END: Final = 1 << 31  # past every rank

OPERATORS: Final[Mapping[str, Operator]] = {
    **elementwise.OPERATORS,
    **layers.OPERATORS,
    **recurrent.OPERATORS,
    **layout.OPERATORS,
    # resolved while parsing
    "Constant": Operator(
        rule=None,
        min_inputs=0,
        max_inputs=0,
        attributes={
            "value": Attribute(Tensor),
            "value_int": Attribute(int),
            "value_ints": INTEGERS,
            "value_float": Attribute(float),
            "value_floats": Attribute(float, is_list=True),
        },
    ),
    "ConstantOfShape": Operator(rule=None, attributes={"value": Attribute(Tensor)}),
    "Shape": Operator(rule=None, attributes=defaults(start=0, end=_END)),
    "Identity": Operator(rule=None, carries=frozenset({0})),
    "Dropout": Operator(
        rule=None,
        max_inputs=3,
        max_outputs=2,
        attributes=defaults(ratio=0.5, seed=0),
        carries=frozenset({0}),
    ),
}

"""The allow-list: every operator that a model may use, by its ONNX name. What is not in it is refused."""

from collections.abc import Mapping
from typing import Final

from maskedlark.model.operators import elementwise, layers, layout, recurrent
from maskedlark.model.operators.call import INTEGERS, Attribute, Operator, Tensor, defaults

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

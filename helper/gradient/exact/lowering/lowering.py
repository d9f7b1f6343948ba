"""The lowering of a checked model and a loss to a plan, or a sentence that says why there is no plan.

The functions for each operator are in `layers` and `layout`.
"""

from typing import Final

from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering import layers, layout
from helper.gradient.exact.lowering.indices import index_inputs, index_sums, read_as_numbers
from helper.gradient.exact.lowering.lowered import Lowered, LoweredBuilder
from maskedlark.model.graph import Model, Node
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.losses import Loss

_LOWERINGS: Final = {**layers.LOWERINGS, **layout.LOWERINGS}


def lower(model: Model, loss: TrainedLoss) -> Lowered:
    """Return the exact form of a model under a loss.

    Raises:
        NotExact: the model has no exact form.
    """
    nodes, output_name = _without_head(model, loss)
    foreign = sorted({node.operator for node in nodes} - set(_LOWERINGS))
    if foreign:
        raise NotExact(f"the model uses {', '.join(foreign)}, which the exact path does not have")
    looked_up = index_inputs(nodes, model.constants)
    indices = index_sums(model, nodes, looked_up)
    nodes = read_as_numbers(nodes, output_name, looked_up)
    builder = LoweredBuilder(model, nodes, output_name, indices)
    for node in nodes:
        if node.outputs[0] not in builder.taken_in:
            _LOWERINGS[node.operator](builder, node)
    return builder.finish()


def _without_head(model: Model, loss: TrainedLoss) -> tuple[tuple[Node, ...], str]:
    """Return the nodes of the model, and the value that the loss then reads.

    A last Sigmoid or LogSoftmax that the loss takes in is left out.
    """
    last = model.nodes[-1]
    if loss is Loss.BINARY_CROSS_ENTROPY:
        if last.operator != "Sigmoid":
            raise NotExact("binary_cross_entropy is exact only where the model ends in Sigmoid")
        return model.nodes[:-1], last.inputs[0]
    if loss is Loss.CROSS_ENTROPY and last.operator == "LogSoftmax":
        return model.nodes[:-1], last.inputs[0]
    return model.nodes, model.output_name

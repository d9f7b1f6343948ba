"""Each operator of the oracle: value, shape and way back of one record, in loops over coordinates.

A function takes (record, node, values, gradients) and leaves in `gradients`, when its way back runs, what its
parameters get.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ldexp, prod, sqrt
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from maskedlark.model.graph import Node
from tests.helper.gradient.exact import oracle

if TYPE_CHECKING:
    from tests.helper.gradient.exact.oracle import Back, Gradient, Reals, Record, Row

    Values = dict[str, Reals | Row]
    Result = tuple[Reals | Row, tuple[int, ...], Back]


def reals(value: "Reals | Row") -> "Reals":
    return value if isinstance(value, list) else [ldexp(float(q), -value.exponent) for q in value.q]


def row_of(value: "Reals | Row") -> "Row":
    return oracle.quantise(value) if isinstance(value, list) else value


def gemm(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    if node.inputs[1] in record.model.constants:
        return fixed_product(record, node, values)
    weight = record.weights[node.inputs[1]]
    transposed = bool(node.attributes.get("transB", 0))
    weights: list[list[int]] = weight.values.T.tolist() if transposed else weight.values.tolist()
    rows, columns = len(weights), len(weights[0])
    bias = record.weights[node.inputs[2]] if len(node.inputs) > 2 else None
    start = record.offsets[node.inputs[1]]
    source = values[node.inputs[0]]
    a = row_of(source)
    value = []
    for j in range(columns):
        exact = ldexp(
            float(sum(a.q[i] * weights[i][j] for i in range(rows))), -(a.exponent + weight.exponent)
        )
        value.append(exact + (ldexp(float(bias.values.flat[j]), -bias.exponent) if bias else 0.0))

    def back(delta: "Reals") -> "dict[str, Reals]":
        d = oracle.quantise(delta)
        terms, hashed = [], []
        if any(a.q):
            hashed = [(0, j, d.q[j], d.exponent + a.exponent) for j in range(columns)]
            for i, j in product(range(rows), range(columns)):
                terms.append(
                    (
                        start + (j * rows + i if transposed else i * columns + j),
                        d.q[j],
                        d.exponent,
                        a.q[i],
                        a.exponent,
                    )
                )
        operand = a.norm(record.norm)
        if bias:
            terms += [(record.offsets[node.inputs[2]] + j, d.q[j], d.exponent, 1, 0) for j in range(columns)]
            hashed += [(1, j, d.q[j], d.exponent) for j in range(columns)]
            operand += 1.0
        gradients.append(
            oracle.Gradient(terms, d.norm(record.norm) * operand, hashed, (columns, columns), a.q)
        )
        if not isinstance(source, list):
            return {}
        exponent = d.exponent + weight.exponent
        return {
            node.inputs[0]: [
                ldexp(float(sum(d.q[j] * weights[i][j] for j in range(columns))), -exponent)
                for i in range(rows)
            ]
        }

    return value, (columns,), back


def fixed_product(record: "Record", node: Node, values: "Values") -> "Result":
    """Sums of bytes times constants, on the way to an index."""
    matrix = record.model.constants[node.inputs[1]].astype(np.float64).tolist()
    shape, outputs = record.shapes[node.inputs[0]], len(matrix[0])
    x, inner = reals(values[node.inputs[0]]), len(matrix)
    value = [
        sum(x[row * inner + i] * matrix[i][j] for i in range(inner))
        for row, j in product(range(prod(shape[:-1])), range(outputs))
    ]
    return value, (*shape[:-1], outputs), lambda _: {}


def window_entries(
    node: Node, space: Sequence[int], kernel: Sequence[int]
) -> Iterator[tuple[int, int, int | None]]:
    """(output position, window entry, input position or None for padding), all flat in C order."""
    strides, pads, dilations = (
        cast("tuple[int, ...]", node.attributes[name]) for name in ("strides", "pads", "dilations")
    )
    axes = range(len(space))
    counts = [
        (space[d] + pads[d] + pads[len(space) + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d in axes
    ]
    for p, output in enumerate(product(*map(range, counts))):
        for k, entry in enumerate(product(*map(range, kernel))):
            place = [output[d] * strides[d] + entry[d] * dilations[d] - pads[d] for d in axes]
            inside = all(0 <= place[d] < space[d] for d in axes)
            yield p, k, int(np.ravel_multi_index(place, space)) if inside else None


def result_space(node: Node, space: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    strides, pads, dilations = (
        cast("tuple[int, ...]", node.attributes[name]) for name in ("strides", "pads", "dilations")
    )
    half = len(space)
    return tuple(
        (space[d] + pads[d] + pads[half + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d in range(half)
    )


def conv(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    weight = record.weights[node.inputs[1]]
    bias = record.weights[node.inputs[2]] if len(node.inputs) > 2 else None
    outputs, channels, *kernel = weight.values.shape
    w = weight.values.reshape(outputs, channels, -1).tolist()
    space = record.shapes[node.inputs[0]][1:]
    size, window = prod(space), prod(kernel)
    source = values[node.inputs[0]]
    a = row_of(source)
    entries = list(window_entries(node, space, kernel))
    result = result_space(node, space, kernel)
    positions = prod(result)
    value = []
    for c in range(outputs):
        sums = [0] * positions
        for p, k, place in entries:
            if place is not None:
                sums[p] += sum(w[c][i][k] * a.q[i * size + place] for i in range(channels))
        offset = ldexp(float(bias.values[c]), -bias.exponent) if bias else 0.0
        value += [ldexp(float(total), -(a.exponent + weight.exponent)) + offset for total in sums]

    def back(delta: "Reals") -> "dict[str, Reals]":
        d = oracle.quantise(delta)
        start = record.offsets[node.inputs[1]]
        found = dict.fromkeys(range(start, start + weight.values.size), 0)
        sent = [0] * (channels * size)
        for c, i, (p, k, place) in product(range(outputs), range(channels), entries):
            if place is not None:
                found[start + (c * channels + i) * window + k] += (
                    d.q[c * positions + p] * a.q[i * size + place]
                )
                sent[i * size + place] += d.q[c * positions + p] * w[c][i][k]
        gradient = {index: ldexp(float(total), -(d.exponent + a.exponent)) for index, total in found.items()}
        if bias:
            for c in range(outputs):
                total = sum(d.q[c * positions : (c + 1) * positions])
                gradient[record.offsets[node.inputs[2]] + c] = ldexp(float(total), -d.exponent)
        record.whole(gradient, gradients, places=range(len(gradient)), width=len(gradient), operand=[])
        if not isinstance(source, list):
            return {}
        return {node.inputs[0]: [ldexp(float(total), -(d.exponent + weight.exponent)) for total in sent]}

    return value, (outputs, *result), back


def max_pool(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    channels, *space = record.shapes[node.inputs[0]]
    kernel = cast("tuple[int, ...]", node.attributes["kernel_shape"])
    x, size, result = reals(values[node.inputs[0]]), prod(space), result_space(node, space, kernel)
    chosen = [-1] * (channels * prod(result))
    for c, (p, _k, place) in product(range(channels), list(window_entries(node, space, kernel))):
        output = c * prod(result) + p
        if place is not None and (chosen[output] < 0 or x[c * size + place] > x[chosen[output]]):
            chosen[output] = c * size + place

    def back(delta: "Reals") -> "dict[str, Reals]":
        sent = [0.0] * len(x)
        for place, d in zip(chosen, delta, strict=True):
            sent[place] = sent[place] + d
        return {node.inputs[0]: sent}

    return [x[place] for place in chosen], (channels, *result), back


def average(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    whole = record.shapes[node.inputs[0]]
    channels, *space = whole
    size = prod(space)
    result: tuple[int, ...]
    entries: list[tuple[int, int, int | None]]
    if node.operator in ("ReduceMean", "ReduceSum"):
        axes = [axis - 1 for axis in cast("tuple[int, ...]", node.attributes["axes"])]
        result = tuple(1 if axis in axes else count for axis, count in enumerate(whole))
        shape = (
            result
            if node.attributes["keepdims"]
            else tuple(count for axis, count in enumerate(whole) if axis not in axes)
        )
        entries = []
        for number, coordinates in enumerate(product(*map(range, whole))):
            home = np.ravel_multi_index(
                [0 if axis in axes else i for axis, i in enumerate(coordinates)], result
            )
            entries.append((int(home), 0, number))
        channels, size = 1, prod(whole)
        counts = [prod(whole[axis] for axis in axes) if node.operator == "ReduceMean" else 1] * prod(result)
    else:
        kernel = cast("tuple[int, ...]", node.attributes["kernel_shape"])
        entries, result = list(window_entries(node, space, kernel)), result_space(node, space, kernel)
        shape = (channels, *result)
        with_padding = bool(node.attributes["count_include_pad"])
        counts = [
            sum(1 for q, _, place in entries if q == p and (with_padding or place is not None))
            for p in range(prod(result))
        ]
    a, positions = row_of(values[node.inputs[0]]), prod(result)
    sums = [0] * (channels * positions)
    for c, (p, _k, place) in product(range(channels), entries):
        sums[c * positions + p] += a.q[c * size + place] if place is not None else 0

    def back(delta: "Reals") -> "dict[str, Reals]":
        d = oracle.quantise([value / float(counts[index % positions]) for index, value in enumerate(delta)])
        sent = [0] * (channels * size)
        for c, (p, _k, place) in product(range(channels), entries):
            if place is not None:
                sent[c * size + place] += d.q[c * positions + p]
        return {node.inputs[0]: [ldexp(float(total), -d.exponent) for total in sent]}

    means = [
        ldexp(float(total), -a.exponent) / float(counts[index % positions])
        for index, total in enumerate(sums)
    ]
    return means, shape, back


def batch_normalization(
    record: "Record", node: Node, values: "Values", gradients: "list[Gradient]"
) -> "Result":
    shape = record.shapes[node.inputs[0]]
    x, positions = reals(values[node.inputs[0]]), prod(shape[1:])
    scale, bias = (record.weights[name].to_float().tolist() for name in node.inputs[1:3])
    mean, variance = (record.model.constants[name].astype(np.float64).tolist() for name in node.inputs[3:5])
    epsilon = float(np.float32(cast("float", node.attributes["epsilon"])))
    inverse = [1.0 / sqrt(v + epsilon) for v in variance]
    normal = [(value - mean[i // positions]) * inverse[i // positions] for i, value in enumerate(x)]
    a = oracle.quantise(normal)

    def back(delta: "Reals") -> "dict[str, Reals]":
        d = oracle.quantise(delta)
        gradient = {}
        for c in range(shape[0]):
            here = range(c * positions, (c + 1) * positions)
            gradient[record.offsets[node.inputs[1]] + c] = ldexp(
                float(sum(d.q[i] * a.q[i] for i in here)), -(d.exponent + a.exponent)
            )
        for c in range(shape[0]):
            gradient[record.offsets[node.inputs[2]] + c] = ldexp(
                float(sum(d.q[c * positions : (c + 1) * positions])), -d.exponent
            )
        record.whole(gradient, gradients, places=range(len(gradient)), width=len(gradient), operand=[])
        return {
            node.inputs[0]: [
                value * scale[i // positions] * inverse[i // positions] for i, value in enumerate(delta)
            ]
        }

    return (
        [value * scale[i // positions] + bias[i // positions] for i, value in enumerate(normal)],
        shape,
        back,
    )


def gather(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    if node.inputs[1] in record.model.constants:
        return moved(record, node, values, gradients)
    indices = [int(number) for number in reals(values[node.inputs[1]])]
    table = record.weights[node.inputs[0]]
    rows, width = table.values.shape
    record.is_outside = record.is_outside or max(indices) >= rows
    chosen = [min(index, rows - 1) for index in indices]
    value = [
        ldexp(float(entry), -table.exponent) for index in chosen for entry in table.values[index].tolist()
    ]

    lookups = record.lookups.setdefault(node.inputs[0], {})
    lookups[node.outputs[0]] = (chosen, [])
    is_first = len(lookups) == 1

    def back(delta: "Reals") -> "dict[str, Reals]":
        lookups[node.outputs[0]] = (chosen, delta)
        if not is_first:  # of the Gathers of one table: by now the others have been here
            return {}
        every = [index for indices, _ in lookups.values() for index in indices]
        deltas = [d for _, ds in lookups.values() for d in ds]
        gradient: dict[int, float] = {}
        for place, index in enumerate(every):
            for j in range(width):
                entry = record.offsets[node.inputs[0]] + index * width + j
                gradient[entry] = gradient.get(entry, 0.0) + deltas[place * width + j]
        homes = [
            place * width + j
            for place, index in enumerate(every)
            if index not in every[:place]
            for j in range(width)
        ]
        record.whole(gradient, gradients, places=homes, width=len(every) * width, operand=every)
        return {}

    return value, (*record.shapes[node.inputs[1]], width), back


def moved(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    source = values[node.inputs[0]]
    shape = record.shapes[node.inputs[0]]
    numbers = np.arange(prod(shape)).reshape(shape)
    attributes = cast("dict[str, Any]", node.attributes)
    if node.operator == "Expand":
        order = np.broadcast_to(numbers, attributes["shape"][1:])
    elif node.operator == "Reshape":
        order = numbers.reshape(attributes["shape"][1:])
    elif node.operator == "Transpose":
        order = numbers.transpose([axis - 1 for axis in attributes["perm"][1:]])
    elif node.operator == "Gather":
        order = np.take(numbers, record.model.constants[node.inputs[1]], axis=attributes["axis"] - 1)
    else:
        cuts = [slice(None)] * len(shape)
        for axis, start, end, step in zip(
            *(attributes[name] for name in ("axes", "starts", "ends", "steps")), strict=True
        ):
            cuts[axis - 1] = slice(start, end, step)
        order = numbers[tuple(cuts)]
    places = order.reshape(-1).tolist()

    def back(delta: "Reals") -> "dict[str, Reals]":
        return {node.inputs[0]: summed(delta, places, prod(shape))}

    kept = (
        [source[place] for place in places]
        if isinstance(source, list)
        else oracle.Row([source.q[p] for p in places], source.exponent)
    )
    return kept, order.shape, back


def concat(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    axis = cast("int", node.attributes["axis"]) - 1
    sizes = [prod(record.shapes[name]) for name in node.inputs]
    starts = np.cumsum([0, *sizes])
    numbered = [
        np.arange(size).reshape(record.shapes[name]) + start
        for name, size, start in zip(node.inputs, sizes, starts, strict=False)
    ]
    order = np.concatenate(numbered, axis=axis)
    joined = [value for name in node.inputs for value in reals(values[name])]
    places = order.reshape(-1).tolist()

    def back(delta: "Reals") -> "dict[str, Reals]":
        sent = [0.0] * len(joined)
        for place, d in zip(places, delta, strict=True):
            sent[place] = d
        return {
            name: sent[start : start + size]
            for name, size, start in zip(node.inputs, sizes, starts, strict=False)
        }

    return [joined[place] for place in places], order.shape, back


def homes_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[int]:
    """The entry of a value of `shape` that each entry of its broadcast to `whole` is."""
    return np.broadcast_to(np.arange(prod(shape)).reshape(shape), whole).reshape(-1).tolist()


def summed(delta: "Reals", homes: list[int], size: int) -> "Reals":
    total = [0.0] * size
    for home, d in zip(homes, delta, strict=True):
        total[home] = total[home] + d
    return total


def both(record: "Record", node: Node, values: "Values") -> "Result":
    names = node.inputs
    shapes = [(1, *record.shapes[name]) for name in names]
    whole = np.broadcast_shapes(*shapes)
    homes = [homes_of(shape, whole) for shape in shapes]
    left, right = (
        [reals(values[name])[home] for home in places] for name, places in zip(names, homes, strict=True)
    )
    slopes = {"Mul": (right, left), "Sub": ([1.0] * len(left), [-1.0] * len(left))}.get(
        node.operator, ([1.0] * len(left),) * 2
    )

    def back(delta: "Reals") -> "dict[str, Reals]":
        sent: dict[str, Reals] = {}
        for name, places, slope, shape in zip(names, homes, slopes, shapes, strict=True):
            part = summed([d * s for d, s in zip(delta, slope, strict=True)], places, prod(shape))
            sent[name] = [a + b for a, b in zip(sent[name], part, strict=True)] if name in sent else part
        return sent

    pairs = list(zip(left, right, strict=True))
    if node.operator == "Mul":
        value = [a * b for a, b in pairs]
    else:
        value = [a - b if node.operator == "Sub" else a + b for a, b in pairs]
    return value, whole[1:], back


def square(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    return both(record, replace(node, operator="Mul", inputs=(node.inputs[0],) * 2), values)


def with_parameter(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    is_first = node.inputs[0] in record.weights
    name, other = node.inputs if is_first else node.inputs[::-1]
    weight, start = record.weights[name], record.offsets[name]
    shape = (1, *record.shapes[other])
    whole = np.broadcast_shapes(shape, weight.values.shape)
    homes, places = homes_of(weight.values.shape, whole), homes_of(shape, whole)
    w = [ldexp(float(entry), -weight.exponent) for entry in weight.values.reshape(-1).tolist()]
    x = [reals(values[other])[place] for place in places]
    sign = -1.0 if node.operator == "Sub" else 1.0
    if node.operator == "Mul":
        value = [a * w[home] for a, home in zip(x, homes, strict=True)]
    elif is_first and node.operator == "Sub":
        value = [-a + w[home] for a, home in zip(x, homes, strict=True)]
    else:
        value = [a + sign * w[home] for a, home in zip(x, homes, strict=True)]

    def back(delta: "Reals") -> "dict[str, Reals]":
        if node.operator == "Mul":
            own = [d * a for d, a in zip(delta, x, strict=True)]
            sent = [d * w[home] for d, home in zip(delta, homes, strict=True)]
        else:
            own = [-d if sign < 0 and not is_first else d for d in delta]
            sent = [-d if sign < 0 and is_first else d for d in delta]
        gradient = dict(enumerate(summed(own, homes, len(w)), start))
        record.whole(gradient, gradients, places=range(len(w)), width=len(w), operand=[])
        return {other: summed(sent, places, prod(shape))}

    return value, whole[1:], back


def layer_normalization(
    record: "Record", node: Node, values: "Values", gradients: "list[Gradient]"
) -> "Result":
    shape = record.shapes[node.inputs[0]]
    width = prod(shape[cast("int", node.attributes["axis"]) - 1 :])
    epsilon = float(np.float32(cast("float", node.attributes["epsilon"])))
    x = reals(values[node.inputs[0]])
    scale = record.weights[node.inputs[1]].to_float().reshape(-1).tolist()
    has_bias = len(node.inputs) > 2
    bias = record.weights[node.inputs[2]].to_float().reshape(-1).tolist() if has_bias else [0.0] * width
    normal, inverses = [], []
    for start in range(0, len(x), width):
        total, squares = 0.0, 0.0
        for value in x[start : start + width]:
            total = total + value
        mean = total / float(width)
        for value in x[start : start + width]:
            squares = squares + (value - mean) * (value - mean)
        inverses.append(1.0 / sqrt(squares / float(width) + epsilon))
        normal += [(value - mean) * inverses[-1] for value in x[start : start + width]]
    a = oracle.quantise(normal)

    def back(delta: "Reals") -> "dict[str, Reals]":
        d = oracle.quantise(delta)
        gradient = {}
        for j in range(width):
            exact = sum(d.q[i] * a.q[i] for i in range(j, len(x), width))
            gradient[record.offsets[node.inputs[1]] + j] = ldexp(float(exact), -(d.exponent + a.exponent))
        for j in range(width) if has_bias else ():
            gradient[record.offsets[node.inputs[2]] + j] = ldexp(float(sum(d.q[j::width])), -d.exponent)
        record.whole(gradient, gradients, places=range(len(gradient)), width=len(gradient), operand=[])
        sent = []
        for row, inverse in enumerate(inverses):
            here = range(row * width, (row + 1) * width)
            scaled = [delta[i] * scale[i % width] for i in here]
            total, along = 0.0, 0.0
            for i, value in zip(here, scaled, strict=True):
                total, along = total + value, along + value * normal[i]
            mean, part = total / float(width), along / float(width)
            sent += [
                ((value - mean) - normal[i] * part) * inverse for i, value in zip(here, scaled, strict=True)
            ]
        return {node.inputs[0]: sent}

    return [value * scale[i % width] + bias[i % width] for i, value in enumerate(normal)], shape, back


def arithmetic(record: "Record", node: Node, values: "Values", gradients: "list[Gradient]") -> "Result":
    names = node.inputs
    if any(name in record.weights for name in names):
        return with_parameter(record, node, values, gradients)
    if all(name in values for name in names):
        return both(record, node, values)
    shape = record.shapes[names[0]] if names[0] in values else record.shapes[names[1]]
    name, constant = names if names[0] in values else names[::-1]
    given = (
        np.broadcast_to(record.model.constants[constant].astype(np.float64), (1, *shape)).reshape(-1).tolist()
    )
    source = values[name]
    if (
        node.operator == "Mul"
        and isinstance(source, oracle.Row)
        and source.exponent == 8
        and set(given) == {256.0}
    ):
        return oracle.Row(source.q, 0), shape, lambda _: {}
    factor = {"Mul": given, "Div": [1.0 / value for value in given]}.get(node.operator, [1.0] * len(given))
    offset = {"Add": given, "Sub": [-value for value in given]}.get(node.operator, [0.0] * len(given))
    result = [x * f + o for x, f, o in zip(reals(source), factor, offset, strict=True)]
    return result, shape, lambda delta: {name: [d * f for d, f in zip(delta, factor, strict=True)]}


def to_integers(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    numbers = reals(values[node.inputs[0]])
    assert all(value.is_integer() for value in numbers)
    return oracle.Row([int(value) for value in numbers], 0), record.shapes[node.inputs[0]], lambda _: {}


def softmax(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    z = reals(values[node.inputs[0]])
    masses = [oracle.exponential(max(z) - value) for value in z]
    p = [float(m) / float(sum(masses)) for m in masses]

    def back(delta: "Reals") -> "dict[str, Reals]":
        dot = 0.0
        for share, d in zip(p, delta, strict=True):
            dot = dot + share * d
        return {node.inputs[0]: [share * (d - dot) for share, d in zip(p, delta, strict=True)]}

    return p, record.shapes[node.inputs[0]], back


def activation(record: "Record", node: Node, values: "Values", _: "list[Gradient]") -> "Result":
    pairs = [curve(node, value) for value in reals(values[node.inputs[0]])]

    def back(delta: "Reals") -> "dict[str, Reals]":
        return {node.inputs[0]: [d * slope for d, (_, slope) in zip(delta, pairs, strict=True)]}

    return [value for value, _ in pairs], record.shapes[node.inputs[0]], back


def curve(node: Node, z: float) -> tuple[float, float]:
    """(value, slope)."""
    operator = node.operator
    if operator in ("Relu", "LeakyRelu"):
        alpha = float(np.float32(cast("float", node.attributes["alpha"]))) if operator == "LeakyRelu" else 0.0
        return (z, 1.0) if z > 0 else (z * alpha, alpha)
    if operator == "Elu":
        alpha = float(np.float32(cast("float", node.attributes["alpha"])))
        e = oracle.exponential(abs(z)) / oracle.ONE
        return (z, 1.0) if z > 0 else (alpha * (e - 1.0), alpha * e)
    if operator == "Tanh":
        e = oracle.exponential(2.0 * abs(z))
        y = float(oracle.ONE - e) / float(oracle.ONE + e)
        return (y if z > 0 else -y), 4.0 * (float(e) * oracle.ONE) / (
            float(oracle.ONE + e) * float(oracle.ONE + e)
        )
    e = oracle.exponential(abs(z))
    y = float(oracle.ONE if z > 0 else e) / float(oracle.ONE + e)
    if operator == "Sigmoid":
        return y, (float(e) * oracle.ONE) / (float(oracle.ONE + e) * float(oracle.ONE + e))
    assert operator == "Softplus"
    return max(z, 0.0) + oracle.softplus_tail(abs(z)) / oracle.ONE, y


STEPS: "dict[str, Callable[[Record, Node, Values, list[Gradient]], Result]]" = {
    "Gemm": gemm,
    "MatMul": gemm,
    "Conv": conv,
    "MaxPool": max_pool,
    "AveragePool": average,
    "ReduceMean": average,
    "ReduceSum": average,
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "Pow": square,
    "Expand": moved,
    "Gather": gather,
    "Reshape": moved,
    "Transpose": moved,
    "Slice": moved,
    "Concat": concat,
    "Add": arithmetic,
    "Sub": arithmetic,
    "Mul": arithmetic,
    "Div": arithmetic,
    "Cast": to_integers,
    "Softmax": softmax,
    **dict.fromkeys(("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Softplus"), activation),
}

"""Writes the golden vectors of the exact path: `python tests/vectors/numerics/generate.py`.

Inputs are small models with random weights, features and labels; outputs come from the oracle alone
(tests/helper/gradient/exact), never from the engine. `vectors.json` beside this file holds every record's
integers; `helper/gradient/exact/golden.json` holds the same inputs with the sums, and is what a helper runs
before it serves.
"""

import base64
import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from maskedlark.model.losses import Loss  # noqa: E402 - the path must be set first, so that this runs as a program
from maskedlark.model.onnx_file import parse  # noqa: E402
from maskedlark.model.weights import decode, encode  # noqa: E402
from maskedlark.numbers.field import MODULUS  # noqa: E402
from maskedlark.privacy.clip import Clip, Norm  # noqa: E402 - the path must be set first, so that this runs as a program
from tests.helper.gradient.exact.graphs import GraphBuilder, example, quantised  # noqa: E402
from tests.helper.gradient.exact.oracle import clipped_integers, values_digest  # noqa: E402

FULL = Path(__file__).with_name("vectors.json")
SHIPPED = ROOT / "helper" / "gradient" / "exact" / "golden.json"
RECORDS = 4


def dense(activation: str, outputs: int, head: str | None = None) -> Callable[[int], bytes]:
    """Two dense layers, the first without a bias, between them one activation."""

    def build(seed: int) -> bytes:
        graph = GraphBuilder(6, seed)
        value = graph.gemm(graph.node(activation, graph.gemm("x", 6, 5, bias=False, scale=1.0)), 5, outputs)
        return graph.encode(graph.node(head, value) if head else value, outputs)

    return build


def image(pool: str) -> Callable[[int], bytes]:
    """Convolution, normalisation, pool, convolution, mean, dense."""

    def build(seed: int) -> bytes:
        graph = GraphBuilder(50, seed)
        value = graph.node("Reshape", "x", graph.tensor(np.array([-1, 2, 5, 5], np.int64)))
        value = graph.node(
            "Conv", value, graph.weight(3, 2, 2, 2), graph.weight(3, scale=0.2), pads=[1, 0, 0, 1]
        )
        statistics = [graph.weight(3, scale=0.2), graph.tensor(np.array([0.5, 1.0, 2.0], np.float32))]
        value = graph.node(
            "BatchNormalization", value, graph.weight(3), graph.weight(3, scale=0.3), *statistics
        )
        value = graph.node(
            pool, graph.node("Relu", value), kernel_shape=[2, 2], strides=[2, 1], pads=[1, 1, 0, 0]
        )
        value = graph.node("GlobalAveragePool", graph.node("Conv", value, graph.weight(4, 3, 2, 2)))
        return graph.encode(graph.gemm(graph.node("Flatten", value, axis=1), 4, 3), 3)

    return build


def categories(seed: int) -> bytes:
    """Two categorical bytes by one table beside two dense features, and a residual sum."""
    graph = GraphBuilder(4, seed)
    bounds = [graph.tensor(np.array([value], np.int64)) for value in (0, 2, 4, 1)]
    chosen = graph.node("Slice", "x", bounds[0], bounds[1], bounds[3])
    rest = graph.node("Slice", "x", bounds[1], bounds[2], bounds[3])
    indices = graph.node("Cast", graph.node("Mul", chosen, graph.tensor(np.array(256, np.float32))), to=7)
    embedded = graph.node("Flatten", graph.node("Gather", graph.weight(200, 3, scale=0.5), indices), axis=1)
    value = graph.node("Elu", graph.gemm(graph.node("Concat", embedded, rest, axis=1), 8, 4))
    value = graph.node("Add", value, graph.node("Softplus", graph.gemm(value, 4, 4)))
    return graph.encode(graph.gemm(value, 4, 2), 2)


def wide_ids(seed: int) -> bytes:
    """Rows of a table of 600 by two pairs of bytes, in two Gathers, and of one of 300 by three bytes."""
    graph = GraphBuilder(7, seed)
    codes = graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(256, np.float32))), to=7)
    parts = [graph.node("Gather", codes, graph.tensor(np.array([at])), axis=1) for at in range(7)]

    def index(*places: int) -> str:
        value = parts[places[-1]]
        for place in places[-2::-1]:
            value = graph.node("Add", graph.node("Mul", value, graph.tensor(np.array(256))), parts[place])
        return value

    shared, other = graph.weight(600, 2, scale=0.5), graph.weight(300, 1, scale=0.5)
    rows = [
        graph.node("Gather", table, index(*places))
        for table, places in ((shared, (0, 1)), (other, (4, 5, 6)), (shared, (2, 3)))
    ]
    value = graph.node("Concat", *(graph.node("Flatten", row, axis=1) for row in rows), axis=1)
    return graph.encode(graph.gemm(graph.node("Tanh", graph.gemm(value, 5, 4)), 4, 2), 2)


def crosses(seed: int) -> bytes:
    """Parameters and values that are added and multiplied, repeated entries, a layer's normalisation."""
    graph = GraphBuilder(6, seed)
    first = graph.node("Tanh", graph.gemm("x", 6, 4))
    value = graph.node("Add", graph.node("Mul", first, graph.gemm(first, 4, 1)), graph.weight(4))
    value = graph.node("LayerNormalization", value, graph.weight(4, scale=1.0), graph.weight(4), epsilon=1e-5)
    value = graph.node("Mul", graph.node("Sub", value, first), graph.weight(1, scale=1.0))
    return graph.encode(graph.gemm(value, 4, 3), 3)


WIDE_IDS = ((599, 257, 299), (300, 300, 256), (0, 256, 0), (600, 255, 300))
"""Rows of the three lookups, each record's; the last record's are beyond the tables."""
L1, L2 = Clip(norm=Norm.L1, bound=1.5, frac_bits=32), Clip(norm=Norm.L2, bound=0.5, frac_bits=32)
CASES: list[tuple[str, Callable[[int], bytes], Loss, Clip]] = [
    ("relu", dense("Relu", 3), Loss.CROSS_ENTROPY, L2),
    ("leaky_relu_l1", dense("LeakyRelu", 3, "LogSoftmax"), Loss.CROSS_ENTROPY, L1),
    ("elu_softmax", dense("Elu", 3, "Softmax"), Loss.CROSS_ENTROPY, L2),
    ("sigmoid_binary", dense("Sigmoid", 1, "Sigmoid"), Loss.BINARY_CROSS_ENTROPY, L2),
    ("tanh_logits_l1", dense("Tanh", 1), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, L1),
    ("softplus_mse", dense("Softplus", 1), Loss.MSE, Clip(norm=Norm.L2, bound=100.0, frac_bits=24)),
    ("relu_poisson", dense("Relu", 1), Loss.POISSON, Clip(norm=Norm.L2, bound=2.0**20, frac_bits=40)),
    ("max_pool", image("MaxPool"), Loss.CROSS_ENTROPY, L2),
    ("average_pool_l1", image("AveragePool"), Loss.CROSS_ENTROPY, L1),
    ("categories", categories, Loss.CROSS_ENTROPY, L2),
    ("wide_ids", wide_ids, Loss.CROSS_ENTROPY, L2),
    ("crosses", crosses, Loss.CROSS_ENTROPY, L2),
]


def text(raw: bytes) -> str:
    """Bytes in JSON."""
    return base64.b64encode(raw).decode()


def inputs(seed: int, name: str, onnx: bytes, loss: Loss, clip: Clip) -> dict[str, Any]:
    """One case's inputs."""
    width = 50 if "pool" in name else {"categories": 4, "wide_ids": 7}.get(name, 6)
    model = parse(onnx, num_features=width)
    made = example(RECORDS, model, loss, 2, seed=seed)
    if name == "wide_ids":
        one, two, three = np.array(WIDE_IDS).T
        spelt = [one % 256, one >> 8, two % 256, two >> 8, three % 256, three >> 8, 0 * three]
        made.features[:] = np.stack(spelt, axis=1)
    return {
        "name": name,
        "onnx": text(onnx),
        "weights": text(encode(quantised(model))),
        "features": made.features.tolist(),
        "labels": made.labels.tolist(),
        "mask_shares": [[str(share) for share in row] for row in made.shares[0].tolist()],
        "loss": str(loss),
        "norm": str(clip.norm),
        "bound": clip.bound,
        "frac_bits": clip.frac_bits,
    }


def outputs(case: dict[str, Any]) -> dict[str, Any]:
    """What the oracle makes of a case.

    Each record's integers for each label, the masked sum, the digest of the values.
    """
    features = np.array(case["features"], np.uint8)
    model = parse(base64.b64decode(case["onnx"]), num_features=features.shape[1])
    weights = decode(base64.b64decode(case["weights"]), model.parameters)
    clip = Clip(norm=Norm(case["norm"]), bound=case["bound"], frac_bits=case["frac_bits"])
    integers, hashes, total = [], [], [0] * model.num_parameters
    for record, labels, shares in zip(features, case["labels"], case["mask_shares"], strict=True):
        found = clipped_integers(
            model, weights, clip=clip, loss=Loss(case["loss"]), features=record, labels=labels
        )
        integers.append(found.vectors)
        hashes.append(found.hash)
        for vector, share in zip(found.vectors, shares, strict=True):
            total = [(a + int(share) * b) % MODULUS for a, b in zip(total, vector, strict=True)]
    aggregate = b"".join(value.to_bytes(8, "little") for value in total)
    return {
        "integers": integers,
        "aggregate_sha256": sha256(aggregate).hexdigest(),
        "values_digest": values_digest(hashes).hex(),
    }


def main() -> None:
    """Write both files."""
    full, shipped = [], []
    for seed, (name, build, loss, clip) in enumerate(CASES):
        case = inputs(seed, name, build(seed), loss, clip)
        found = outputs(case)
        full.append({**case, **found})
        shipped.append({**case, **{key: value for key, value in found.items() if key != "integers"}})
    for path, cases in ((FULL, full), (SHIPPED, shipped)):
        path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()

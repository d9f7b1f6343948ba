"""Processor time and memory of one round of wide models, one thread: `python -m tests.bench.wide [LAYERS]`.

Each model has a process of its own, so that the peak of its memory is its own.
"""

import resource
import subprocess
import sys
from typing import Final

from tests.bench.harness import best_of

MODELS: Final = ("784,1336,10", "784,2680,10", "2000,2000,1000,10", "784,10500,10")
RECORDS: Final = 512
TURNS: Final = 2


def measure(layers: list[int]) -> None:
    """Print the best of a few rounds, and how much the peak of resident memory rose in them."""
    import numpy as np

    from helper.gradient.engine import Batch
    from helper.gradient.exact.engine import ExactEngine
    from maskedlark.model.dense import dense_network
    from maskedlark.model.losses import Loss
    from maskedlark.model.onnx_file import parse
    from maskedlark.model.weights import quantise
    from maskedlark.privacy.clip import Clip, Norm

    rng = np.random.default_rng(0)
    model = parse(dense_network(layers, "relu", seed=1), num_features=layers[0])
    weights = tuple(quantise(values.astype(np.float32)) for values in model.initial_values)
    batch = Batch(
        features=rng.integers(0, 256, (RECORDS, layers[0])).astype(np.uint8),
        labels=np.tile(np.array([[1, 2]], np.uint32), (RECORDS, 1)),
        mask_shares=rng.integers(0, 2**63, (RECORDS, 2)).astype(np.uint64),
    )
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=32), threads=1)
    before = peak_mb()
    seconds = best_of(lambda: engine.masked_sum(weights, batch), TURNS)
    size = model.num_parameters
    print(
        f"{'-'.join(map(str, layers)):20} {size / 2**20:5.2f} Mi parameters: {seconds:.2f} s,"
        f" {1e9 * seconds / size:.0f} ns a parameter, {peak_mb() - before:.0f} MB"
    )


def peak_mb() -> float:
    """The peak of this process's resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure([int(width) for width in sys.argv[1].split(",")])
    else:
        for model in MODELS:
            subprocess.run([sys.executable, "-m", "tests.bench.wide", model], check=True)

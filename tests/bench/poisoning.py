"""How accuracy falls with the share of malicious browsers, with and without proofs of form:
docs/explanation/poisoning.md.

    python -m tests.bench.poisoning            a table
    python -m tests.bench.poisoning --json

Logistic regression on WBCD, in the clear: what the ad server computes is the sum of clipped gradients times
    masks, so training on that sum is what the protocol gives with noise off. A malicious browser reports its
    features with the wrong label. Where nothing is proven, its mask is as heavy as the check of the sum lets
    all malicious ones be together.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from tests.bench.harness import bench_parser

SHARES = (0.0, 0.002, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
CLIPS = (0.25, 1.0, 4.0)
SEEDS = 10
ROUNDS = 200
RATE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Accuracy on held-out people, the mean and the least of all seeds.

    Attributes:
        share: Of malicious browsers.
        clip: The L2 bound on one report's gradient.
        proven: Where reports prove their form: only labels lie.
        proven_least: Of the worst seed.
        unproven: Where they do not: labels lie and masks are heavy.
        unproven_least: Of the worst seed.
    """

    share: float
    clip: float
    proven: float
    proven_least: float
    unproven: float
    unproven_least: float


def measure() -> list[Point]:
    """Every share at every clip bound."""
    points = []
    for clip in CLIPS:
        for share in SHARES:
            both = [
                [accuracy(share=share, clip=clip, seed=seed, is_proven=is_proven) for seed in range(SEEDS)]
                for is_proven in (True, False)
            ]
            points.append(
                Point(
                    share=share,
                    clip=clip,
                    proven=float(np.mean(both[0])),
                    proven_least=min(both[0]),
                    unproven=float(np.mean(both[1])),
                    unproven_least=min(both[1]),
                )
            )
    return points


def accuracy(*, share: float, clip: float, seed: int, is_proven: bool) -> float:
    """Train on four fifths of the people, a share of them malicious, and test on the rest."""
    draws = np.random.default_rng(seed)
    table = load_breast_cancer()
    features = np.round(255 * (table.data - table.data.min(0)) / np.ptp(table.data, axis=0)) / 256
    x = np.column_stack([features, np.ones(len(features))])
    order = draws.permutation(len(x))
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]
    y = table.target[train].astype(np.float64)
    malicious = draws.permutation(len(train))[: round(share * len(train))]
    y[malicious] = 1 - y[malicious]
    mask = np.ones(len(train))
    if not is_proven and len(malicious):
        # A sum is thrown away if it is longer than all reports' clipped gradients: heavier masks would stop
        # the job.
        mask[malicious] = max(1.0, len(train) / len(malicious) / 2)
    weights = np.zeros(x.shape[1])
    for _ in range(ROUNDS):
        weights -= RATE * clipped_sum(x[train], y, weights, mask, clip) / len(train)
    return float(((x[test] @ weights > 0) == (table.target[test] > 0)).mean())


def clipped_sum(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    weights: NDArray[np.float64],
    mask: NDArray[np.float64],
    clip: float,
) -> NDArray[np.float64]:
    """The sum of clipped gradients of the logistic loss, each times its mask."""
    deltas = 1 / (1 + np.exp(-(x @ weights))) - y
    lengths = np.abs(deltas) * np.linalg.norm(x, axis=1)
    factors = deltas * np.minimum(1, clip / np.maximum(lengths, 1e-12)) * mask
    total: NDArray[np.float64] = factors @ x
    return total


def main() -> None:
    """The command line."""
    parser = bench_parser(__doc__)
    points = measure()
    if parser.parse_args().json:
        print(json.dumps([asdict(point) for point in points], indent=1))
        return
    print("| clip | malicious | proven: mean, worst | not proven: mean, worst |\n|---|---|---|---|")
    for one in points:
        print(
            f"| {one.clip:g} | {one.share:.1%} | {one.proven:.3f}, {one.proven_least:.3f} |"
            f" {one.unproven:.3f}, {one.unproven_least:.3f} |"
        )


if __name__ == "__main__":
    main()

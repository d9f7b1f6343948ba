"""How often private evaluations choose the best of several models, and what that costs.

    python -m tests.bench.selection [--json]

Adult's 32,561 training rows are the dataset. Ten jobs differ in their rate alone, from .03 to 30: a logistic
regression on one-hot columns, 60 full batches, each at epsilon 1 with both helpers' noise, as numpy draws it.
Each model is evaluated on the dataset by a noisy histogram, and the one of the largest AUC is chosen; the AUC
on the test rows says how much worse than the best of the ten it is. The accountant is the product's.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.budgets.planned_tests import plan_tests
from adserver.measuring.evaluation_metrics import SmoothedCounts, smooth
from adserver.records.defaults import DEFAULT_BINS
from maskedlark.privacy.accounting import Charge, smallest_fitting, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from tests.bench.examples import adult
from tests.bench.harness import bench_parser, show
from tests.builders import world

DELTA: Final = 1e-5
ROUNDS: Final = 60
RATES: Final = tuple(float(f"{rate:.2g}") for rate in np.geomspace(0.03, 30.0, 10))
SEEDS: Final = 3
DRAWS: Final = 100
EPSILONS: Final = (0.03, 0.1, 0.3, 1.0)
WITHIN: Final = 0.005


def job_charge(noise: float) -> Charge:
    """A job of full batches."""
    return Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=noise, sampling_rate=1.0, rounds=ROUNDS)


def tuned_epsilon(noise: float, runs: float) -> float:
    """The epsilon of Papernot and Steinke, theorem 6: a Poisson number of runs, only the best is published.

    Of both helpers' noise in a job of full batches, whose Renyi divergence is order * ROUNDS / (4 noise^2).
    """
    rho = ROUNDS / (4 * noise * noise)
    best = math.inf
    for order in np.geomspace(1.5, 500, 400):
        pure = math.log1p(1 / (order - 1))
        # the delta of the same runs at that epsilon, of the best order
        others = np.geomspace(1.01, 5_000, 2_000)
        log_delta = np.min(
            (others - 1) * (rho * others - pure) + others * np.log1p(-1 / others) - np.log(others - 1)
        )
        divergence = rho * order + runs * math.exp(min(0.0, log_delta)) + math.log(runs) / (order - 1)
        epsilon = divergence + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        best = min(best, float(epsilon))
    return best


def train(
    records: NDArray[np.float64], labels: NDArray[np.int64], rate: float, noise: float, seed: int
) -> NDArray[np.float64]:
    """Return the weights of one job; gradients are clipped to 1, as every record is."""
    draws = np.random.default_rng([seed, int(rate * 1e6)])
    weights, moving = np.zeros(records.shape[1]), np.zeros(records.shape[1])
    lengths = np.sqrt((records * records).sum(1))
    for index in range(ROUNDS):
        excess = 1 / (1 + np.exp(-(records @ weights))) - labels
        excess *= np.minimum(1.0, 1.0 / np.maximum(np.abs(excess) * lengths, 1e-12))
        summed = excess @ records + math.sqrt(2) * noise * draws.normal(size=len(weights))
        moving = 0.9 * moving + summed / len(labels)
        weights = weights - rate * (1 + math.cos(math.pi * index / ROUNDS)) / 2 * moving
    return weights


def histogram(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Records by label and score bin, as both helpers count them."""
    bins = np.minimum(DEFAULT_BINS - 1, (DEFAULT_BINS / (1 + np.exp(-logits))).astype(int))
    return np.bincount(labels * DEFAULT_BINS + bins, minlength=2 * DEFAULT_BINS).reshape(2, -1).astype(float)


def one_hot(features: NDArray[np.uint8]) -> NDArray[np.float64]:
    """One column for each sixteenth of a byte's range, or each byte where a column has few, and a bias."""
    columns = []
    for column in features.T:
        codes = column if len(np.unique(column)) <= 64 else column // 16
        columns.append((codes[:, None] == np.unique(codes)).astype(float))
    return np.concatenate([*columns, np.ones((len(features), 1))], 1)


def measure() -> dict[str, Any]:
    """Return the regret of the choice at each epsilon, and what it and its alternatives cost."""
    _, seen, test = adult()
    whole = one_hot(np.concatenate([seen.features, test.features]))
    records, unseen = whole[: len(seen.labels)], whole[len(seen.labels) :]
    noise = smallest_fitting(
        lambda each: [job_charge(each)], 1.0, DELTA, already=(), collusion_epsilon=math.inf
    )
    task = world(mechanism="gaussian", epsilon=3.0, collusion_epsilon=1e3, delta=DELTA).task
    found: dict[str, Any] = {"jobs": len(RATES), "reports": len(records)}
    chosen: dict[float, list[float]] = {epsilon: [] for epsilon in EPSILONS}
    blind: list[float] = []
    for seed in range(SEEDS):
        models = [train(records, seen.labels, rate, noise, seed) for rate in RATES]
        true = np.array(
            [
                float(SmoothedCounts(counts=histogram(unseen @ weights, test.labels)).roc_auc())
                for weights in models
            ]
        )
        blind.extend(true.max() - true)
        counts = np.stack([histogram(records @ weights, seen.labels) for weights in models])
        for epsilon in EPSILONS:
            tests = plan_tests(task, count=len(RATES), share=epsilon / 3.0)
            draws = np.random.default_rng([seed, int(epsilon * 100)])
            for _ in range(DRAWS):
                noisy = counts + draws.normal(0, tests.count_noise, counts.shape)
                chosen[epsilon].append(
                    float(true.max() - true[np.argmax(SmoothedCounts(counts=smooth(noisy)).roc_auc())])
                )
        found[f"best_auc_{seed}"] = float(true.max())
    found["blind_within"] = float(np.mean(np.array(blind) <= WITHIN))
    for epsilon, losses in chosen.items():
        tests = plan_tests(task, count=len(RATES), share=epsilon / 3.0)
        found[f"within_{epsilon:g}"] = float(np.mean(np.array(losses) <= WITHIN))
        found[f"loss_auc_{epsilon:g}"] = float(np.mean(losses))
        found[f"each_evaluation_{epsilon:g}"] = tests.epsilon
        found[f"all_evaluations_{epsilon:g}"] = tests.cost.ad_server
    jobs = [[job_charge(noise)]] * len(RATES)
    found["one_job"] = spent_in_turn(jobs[:1], DELTA).ad_server
    found["all_jobs"] = spent_in_turn(jobs, DELTA).ad_server
    found["papernot_steinke"] = tuned_epsilon(noise, float(len(RATES)))
    for epsilon in EPSILONS:
        each = plan_tests(task, count=len(RATES), share=epsilon / 3.0).charges(task)
        found[f"all_{epsilon:g}"] = spent_in_turn([*jobs, *([one] for one in each)], DELTA).ad_server
    return found


if __name__ == "__main__":
    arguments = bench_parser(__doc__).parse_args()
    show(measure(), is_json=arguments.json)

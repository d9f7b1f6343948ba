"""Every figure of the four federated papers beside ours: `make federated` (ARGS=--quick, --json, --part
NAME).

Each part is one function that returns its keys. Two run at a time, with the progress and the time that is
left on standard error; the result is one JSON object, or a table. `--quick` trains the language model for
fewer rounds and on fewer settings, and leaves out K = 1,000, the run without privacy, and draw and discard's
sweep of epsilon; `--all` adds K = 10,000.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from adserver.simulating.draw_and_discard import DrawSimulation
from adserver.simulating.simulator import Simulated, simulate
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.generalised_linear import Batches, Logistic, Multinomial
from maskedlark.federated.kinds import ServerOptimizerKind
from maskedlark.federated.local_training import Examples, LocalTraining
from maskedlark.federated.moments2016 import MomentsStep, epsilon_2016
from maskedlark.federated.populations import Population
from maskedlark.federated.server_optimizer import ServerOptimizer
from maskedlark.federated.spam import SpamTest
from maskedlark.federated.strategies.client_level import ClientLevel
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.accounting import Charge, compose_epsilon
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.composing.analytic_gaussian import analytic_sigma
from maskedlark.privacy.samplers import discrete_laplace
from maskedlark.randomness import seeded
from tests import charge_builders
from tests.bench import mnist
from tests.bench.draw_laws import area_under_curve, batched_averaging, share_that_dies, stationary_variance
from tests.bench.harness import bench_parser, show
from tests.progress import shown

Figures = dict[str, Any]

TABLE_1: Final = {
    (1e5, 1e2, 1.0): (0.97, 0.98, 1.00, 1.07, 1.18, 2.21, 7.50),
    (1e6, 1e1, 1.0): (0.68, 0.69, 0.69, 0.69, 0.69, 0.72, 0.73),
    (1e6, 1e3, 1.0): (1.17, 1.17, 1.20, 1.28, 1.39, 2.44, 8.13),
    (1e6, 1e4, 1.0): (1.73, 1.92, 2.08, 3.06, 8.49, 32.38, 187.01),
    (1e6, 1e3, 3.0): (0.47, 0.47, 0.48, 0.48, 0.49, 0.67, 1.95),
    (1e9, 1e3, 1.0): (0.84, 0.84, 0.84, 0.85, 0.88, 0.88, 0.88),
}
TABLE_2: Final = {
    (763430.0, 5000.0): 4.634,
    (763430.0, 1667.0): 2.314,
    (763430.0, 1250.0): 2.038,
    (1e8, 5000.0): 1.152,
    (1e8, 1667.0): 0.991,
    (1e8, 1250.0): 0.987,
}
SIGMAS: Final = {(1.0, 1e-5): 3.73063, (0.5, 1e-6): 8.05762, (8.0, 1e-5): 0.600229, (0.1, 1e-6): 36.3047}
PAPER_DAD: Final = {"k1": 0.912, "k5": 0.889, "k10": 0.875, "k20": 0.855, "k50": 0.820, "k100": 0.787}
KNOWN_WEIGHTS: Final = (
    0.34, -1.18, 1.05, 1.6, -1.51, 0.72, 1.36, -1.41, -1.67, -1.14, 1.3, 1.72, 0.18, -1.52, 1.72, -1.17,
    -0.12, -0.53, 1.00,
    -0.42, -1.64, -1.53, 0.64, 0.48, -0.17, 0.44, -0.51, -0.68, 1.65, 0.51, -1.64, 0.57, -0.80,
)  # fmt: skip
"""Pihur et al. 2018, section V-C; the second group printed as B E2j is D E2j here, or there are not 33 terms.
"""

SHAKESPEARE: Final = "shakespeare_by_role.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run."""

    is_quick: bool
    is_all: bool


def accountants(scale: Scale) -> Figures:
    """Tables 1 and 2 of McMahan et al. 2018, and what is charged for table 2."""
    cells = [
        f"{epsilon_2016([_step(sample / users, noise, 10**power)], users**-1.1):.2f}" == f"{printed:.2f}"
        for (users, sample, noise), row in TABLE_1.items()
        for power, printed in enumerate(row)
    ]
    steps = {key: _step(key[1] / key[0], 1.0, 5000) for key in TABLE_2}
    second = [
        f"{epsilon_2016([steps[key]], 1e-9):.3f}" == f"{printed:.3f}" for key, printed in TABLE_2.items()
    ]
    charged = [round(compose_epsilon([_charge(step)], 1e-9), 3) for step in steps.values()]
    return {
        "table1_cells_equal": sum(cells),
        "table2_cells_equal": sum(second),
        "table2_charged": charged,
    }


def line_noise(scale: Scale) -> Figures:
    """The analytic Gaussian's sigma against the published ones."""
    errors = [abs(analytic_sigma(*of) / printed - 1) for of, printed in SIGMAS.items()]
    return {"line_sigma_worst_error": max(errors)}


def client_level_k100(scale: Scale) -> Figures:
    """100 clients, epsilon 8: 11 rounds of half of them."""
    return {"client_level_k100": _client_level(100, 50, 11, 1e-3)}


def client_level_k1000(scale: Scale) -> Figures:
    """1,000 clients, epsilon 8: 54 rounds of 220."""
    return {"client_level_k1000": _client_level(1000, 220, 54, 1e-5)}


def client_level_k10000(scale: Scale) -> Figures:
    """10,000 clients, epsilon 8: 412 rounds of 508, a network with one hidden layer."""
    return {"client_level_k10000": _client_level(10_000, 508, 412, 1e-6, hidden=(64,))}


def client_level_plain(scale: Scale) -> Figures:
    """100 clients without privacy."""
    model = DenseModel(widths=(784, 50, 10))
    strategy = DpFedAvg(
        devices=100,
        sampling_rate=1.0,
        rounds=60,
        noise_multiplier=0.0,
        bound=UpdateBound(clip_norm=100.0),
        is_clipped_each_batch=False,
        local=LocalTraining(epochs=1, batch_size=10, learning_rate=0.1),
        server=ServerOptimizer(kind=ServerOptimizerKind.MOMENTUM, momentum=0.8),
    )
    return {"client_level_plain_k100": _shards_accuracy(strategy, model)}


def language_model(scale: Scale) -> Figures:
    """Figures 2 and 3 of McMahan et al. 2018 at CPU scale: recall by clip bound and noise."""
    from tests.bench.corpus import read_corpus
    from tests.bench.word_model import WordModel

    paper = WordModel(words=10_000, embedding=96, hidden=256)
    figures: Figures = {"lm_parameters": sum(paper.layer_sizes), "lm_vectors": len(paper.layer_sizes)}
    corpus = read_corpus(
        data_folder() / SHAKESPEARE,
        vocabulary=2000,
        tokens=10,
        most=40,
        least=4,
        held_out=100,
        randomness=seeded(1),
    )
    model = WordModel(words=2000, embedding=32, hidden=64)
    cohort, rounds = 20, 60 if scale.is_quick else 120
    settings = {
        "none": (100.0, 0.0),
        "clip 2.6": (2.6, 0.0),
        "clip 1": (1.0, 0.0),
        "clip 0.3": (0.3, 0.0),
        "noise 0.003": (2.6, 0.003),
        "noise 0.01": (2.6, 0.01),
        "noise 0.03": (2.6, 0.03),
    }
    if scale.is_quick:
        # In 60 rounds, noise of .03 does not add up to a difference that one seed shows: the quick run takes
        # more.
        settings = {name: settings[name] for name in ("clip 2.6", "clip 0.3")} | {"noise 0.1": (2.6, 0.1)}
    recalls: dict[str, float] = {"constant": round(corpus.majority, 4)}
    for name, (clip_norm, sigma) in settings.items():
        strategy = DpFedAvg(
            devices=len(corpus.population),
            sampling_rate=cohort / len(corpus.population),
            rounds=rounds,
            noise_multiplier=sigma * cohort / clip_norm,
            bound=UpdateBound(clip_norm=clip_norm),
            local=LocalTraining(epochs=1, batch_size=8, learning_rate=1.0),
        )
        simulated = Simulated(
            strategy=strategy,
            model=model,
            population=corpus.population,
            features=corpus.words,
            labels=corpus.targets,
        )
        *_, last = simulate(
            simulated,
            model.initial(seeded(1)),
            seed=1,
            evaluate=lambda weights: {"recall": model.accuracy(weights, corpus.held_out)},
            eval_every=rounds,
        )
        recalls[name] = round(last.scores["recall"], 4)
        _say(f"  {name}: {recalls[name]:.4f}")
    return figures | {"lm": recalls, "lm_users": len(corpus.population), "lm_ordered": is_ordered(recalls)}


def is_ordered(recalls: Mapping[str, float]) -> bool:
    """Whether recalls have the shape of figures 2 and 3, as far as they were measured."""
    clipped, tight = recalls["clip 2.6"], recalls["clip 0.3"]
    noisiest = recalls["noise 0.03" if "none" in recalls else "noise 0.1"]
    holds = [clipped > recalls["constant"], tight <= recalls["constant"] + 0.015, noisiest < clipped]
    if "none" in recalls:
        holds += [
            recalls["none"] >= clipped - 0.015,
            tight < recalls["clip 1"] <= clipped + 0.015,
            abs(recalls["noise 0.003"] - clipped) <= 0.015,
            abs(recalls["noise 0.01"] - clipped) <= 0.015,
            noisiest < min(recalls["noise 0.003"], recalls["noise 0.01"]),
        ]
    return all(holds)


def draw_laws(scale: Scale) -> Figures:
    """Draw and discard's stationary variance, one at a time and with updates in flight, and how updates die
    out.
    """
    updates = 5_000 if scale.is_quick else 20_000
    alone = {
        k: stationary_variance(k, 0, updates=updates, trees=256, seed=1) / (k / 2) for k in (2, 5, 10, 20)
    }
    flying = {
        held: stationary_variance(10, held, updates=updates, trees=256, seed=1) / ((10 + held) / 2)
        for held in (10, 30, 100)
    }
    return {
        "dad_variance": {f"k{k}": round(ratio * k / 2, 3) for k, ratio in alone.items()},
        "dad_variance_worst_error": round(max(abs(ratio - 1) for ratio in alone.values()), 4),
        "dad_async": {f"L{held}": round(ratio * (10 + held) / 10, 3) for held, ratio in flying.items()},
        "dad_async_worst_error": round(max(abs(ratio - 1) for ratio in flying.values()), 4),
        "dad_dies": {f"k{k}": round(share_that_dies(k, trials=20_000, seed=1), 3) for k in (5, 10, 20)},
    }


def draw_mnist(scale: Scale) -> Figures:
    """Multinomial regression on MNIST by k and by epsilon, and k = 20 beside averaging 20 clients."""
    found: dict[str, float] = {}
    for k in (1, 10, 20) if scale.is_quick else (1, 5, 10, 20, 50, 100):
        found[f"k{k}"], loss = _dad_mnist(k, None)
        if k == 20:
            loss_k20 = loss
        _say(f"  k {k}: {found[f'k{k}']:.4f}")
    figures: Figures = {"dad_mnist": found, "dad_loss_k20": round(loss_k20, 3)}
    clients, order, features, labels = _dad_clients()
    model = Multinomial(features=784, classes=10)
    weights = batched_averaging(model, clients, order, learning_rate=0.001, clients=20)
    figures["dad_loss_batch20"] = round(model.loss(weights, features, labels), 3)
    if not scale.is_quick:
        figures["dad_mnist_epsilon"] = {
            f"log {base}": _dad_mnist(10, math.log(base))[0] for base in (3, 8, 16, 32, 64)
        }
    return figures


def draw_known_weights(scale: Scale) -> Figures:
    """The 33-weight logistic model with known weights: the correlation of what 1,000,000 updates recover."""
    numbers = np.random.default_rng(1)
    truth = np.array(KNOWN_WEIGHTS)
    settings = DrawAndDiscard(instances=30, learning_rate=0.1)
    model = Logistic(features=33)
    instances = settings.initial(np.zeros(33), seeded(1))
    together = 50
    for _ in range(1_000_000 // together):
        features = _crossed(numbers, together)
        labels = numbers.random(together) < 1 / (1 + np.exp(-(features @ truth)))
        batches = Batches(features=features[:, None], labels=labels[:, None].astype(np.int64))
        drawn, replaced = numbers.integers(0, 30, (2, together))
        instances[replaced] = settings.device_steps(model, instances[drawn], batches, seeded(1))
    return {"dad_weight_correlation": round(float(np.corrcoef(settings.mean(instances), truth)[0, 1]), 4)}


def draw_spam(scale: Scale) -> Figures:
    """The spam test on attacks, with 387 weights, 20 instances and 20 updates in flight or none."""
    worst, refused = 1.0, 0.0
    for in_flight in (0,) if scale.is_quick else (0, 20):
        honest = _spam_scores(None, in_flight)
        refused = max(refused, float(np.mean(honest > 1)))
        for attack in ATTACKS.values():
            worst = min(worst, area_under_curve(honest, _spam_scores(attack, in_flight)))
    return {"dad_spam_auc": round(worst, 4), "dad_spam_fpr": round(refused, 4)}


PARTS: Final[dict[str, Callable[[Scale], Figures]]] = {
    "accountants": accountants,
    "line": line_noise,
    "draw-laws": draw_laws,
    "draw-spam": draw_spam,
    "client-level-k100": client_level_k100,
    "draw-mnist": draw_mnist,
    "language-model": language_model,
    "draw-known-weights": draw_known_weights,
    "client-level-plain": client_level_plain,
    "client-level-k1000": client_level_k1000,
    "client-level-k10000": client_level_k10000,
}
NOT_QUICK: Final = ("client-level-k1000", "client-level-plain")
ONLY_ALL: Final = ("client-level-k10000",)
WORKERS: Final = 2
LONGEST: Final = (
    "client-level-k10000",
    "language-model",
    "draw-mnist",
    "client-level-plain",
    "client-level-k1000",
)

SHARES: Final = {
    "language-model": 300,
    "draw-mnist": 260,
    "client-level-plain": 200,
    "client-level-k1000": 150,
    "client-level-k10000": 3000,
    "draw-spam": 40,
    "client-level-k100": 20,
    "accountants": 10,
    "draw-known-weights": 15,
}
"""Seconds of a processor that parts took once: what the time that is left is guessed from."""
QUICKER: Final = {"language-model": 0.25, "draw-mnist": 0.2, "draw-spam": 0.5}
"""The same of a quick run, as a share."""


def _step(rate: float, noise: float, rounds: int) -> MomentsStep:
    return MomentsStep(sampling_rate=rate, noise_multiplier=noise, rounds=rounds)


def _charge(step: MomentsStep) -> Charge:
    return charge_builders.gaussian(step.noise_multiplier, rate=step.sampling_rate, rounds=step.rounds)


def _noise_for(rate: float, rounds: int, delta: float) -> float:
    """The least noise multiplier of two decimals with which the rounds cost at most epsilon 8."""
    return next(
        z / 100
        for z in range(50, 300)
        if compose_epsilon([_charge(_step(rate, z / 100, rounds))], delta) <= 8.0
    )


def _client_level(
    devices: int, cohort: int, rounds: int, delta: float, hidden: tuple[int, ...] = ()
) -> float:
    rate = cohort / devices
    strategy = ClientLevel(
        devices=devices,
        sampling_rate=rate,
        rounds=rounds,
        noise_multiplier=_noise_for(rate, rounds, delta),
        epsilon=8.0,
        delta=delta,
        bound=UpdateBound(clip_norm=4.0, is_counted=True),
        quantile=AdaptiveClip(quantile=0.5, learning_rate=0.3, initial=0.25),
        local=LocalTraining(epochs=1, batch_size=10, learning_rate=0.05),
    )
    return _shards_accuracy(strategy, DenseModel(widths=(784, *hidden, 10)))


def _shards_accuracy(strategy: ClientLevel | DpFedAvg, model: DenseModel) -> float:
    """Test accuracy after all rounds on sorted MNIST in shards of 300, two a client."""
    images, digits = mnist.load_training_set()
    test_images, test_digits = mnist.load_test_set()
    test = Examples(features=test_images, labels=test_digits)
    population = Population.in_shards(
        digits, devices=strategy.devices, shards_each=2, shard_size=300, randomness=seeded(1)
    )
    simulated = Simulated(
        strategy=strategy, model=model, population=population, features=images, labels=digits
    )
    *_, last = simulate(
        simulated,
        model.initial(seeded(1)),
        seed=1,
        evaluate=lambda weights: {"accuracy": model.accuracy(weights, test)},
        eval_every=1 << 30,
    )
    return round(last.scores["accuracy"], 4)


@cache
def _dad_clients() -> tuple[Batches, np.ndarray, np.ndarray, np.ndarray]:
    """6,000 clients of 10 digits, 20 passes over them, and the whole training set."""
    images, digits = mnist.load_training_set()
    features = images / np.float32(255)
    members = np.stack(Population.in_equal_parts(len(digits), each=10, randomness=seeded(1)).members)
    clients = Batches(features=features[members], labels=digits[members])
    order = np.concatenate([np.random.default_rng(turn).permutation(len(members)) for turn in range(20)])
    return clients, order, features, digits


def _dad_mnist(k: int, epsilon: float | None) -> tuple[float, float]:
    """Test accuracy and training loss of the mean of k instances."""
    clients, order, features, digits = _dad_clients()
    model = Multinomial(features=784, classes=10)
    settings = DrawAndDiscard(instances=k, learning_rate=0.001, epsilon=epsilon)
    stream = seeded(1, "draws")
    instances = settings.initial(np.zeros(model.size), stream)
    for _ in DrawSimulation(settings=settings, model=model, batches=clients).run(instances, order, stream):
        pass
    weights = settings.mean(instances)
    test_images, test_digits = mnist.load_test_set()
    accuracy = model.accuracy(weights, test_images / np.float32(255), test_digits)
    return round(accuracy, 4), model.loss(weights, features, digits)


def _crossed(numbers: np.random.Generator, count: int) -> np.ndarray:
    """Random features of the 33-weight model, all in [0, 1]: main effects and two-way crosses."""
    b = numbers.integers(0, 2, count)[:, None]
    e1 = np.eye(3)[numbers.integers(0, 3, count)][:, 1:]
    e2 = np.eye(4)[numbers.integers(0, 4, count)][:, 1:]
    d, i = numbers.random(count)[:, None], numbers.integers(0, 5, count)[:, None] / 4
    crosses = (e1[:, :, None] * e2[:, None, :]).reshape(count, 6)
    columns = (
        np.ones((count, 1)),
        b,
        e1,
        e2,
        d,
        i,
        b * e1,
        b * e2,
        b * d,
        b * i,
        crosses,
        d * e1,
        i * e1,
        d * e2,
        i * e2,
        d * i,
    )
    return np.concatenate(columns, axis=1)


ATTACKS: Final[dict[str, Callable[[SignedVector, SignedVector], SignedVector]]] = {
    "scaled by ten": lambda drawn, noise: 10 * (drawn + noise),
    "a step ten times too long": lambda drawn, noise: drawn + 10 * noise,
    "sign flipped": lambda drawn, noise: -(drawn + noise),
    "constant": lambda drawn, noise: np.zeros_like(drawn),
}


def _spam_scores(
    attack: Callable[[SignedVector, SignedVector], SignedVector] | None, in_flight: int
) -> np.ndarray:
    """Scores of honest returns, or of an attacker's in their place; honest clients move the instances."""
    weights, updates = 387, 10_000
    job = DrawAndDiscard(instances=20, learning_rate=0.001, epsilon=math.log(32))
    test = SpamTest.calibrate(job, weights=weights, in_flight=in_flight, randomness=seeded(1))
    stream = seeded(2)
    instances = job.initial(np.linspace(-1, 1, weights), stream)
    scale = job.noise_scale(math.log(32))
    waiting = [instances[source].copy() for source in job.pick(in_flight, stream)]
    found = []
    for source, place in zip(job.pick(updates, stream), job.pick(updates, stream), strict=True):
        waiting.append(instances[source].copy())
        drawn, noise = waiting.pop(0), discrete_laplace(scale, weights, stream)
        returned = drawn + noise if attack is None else attack(drawn, noise)
        found.append(test.score(returned, instances))
        instances[place] = drawn + noise
    return np.array(found[2000:])


def data_folder() -> Path:
    """Where the data sets lie."""
    return Path(os.environ.get("MASKEDLARK_DATA", "../shared/data"))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def measure(names: list[str], scale: Scale) -> Figures:
    """Run parts, two at a time, the longest first.

    Each part's seconds are under `seconds`, and its processor time under `cpu_seconds`.
    """
    figures: Figures = {"seconds": {}, "cpu_seconds": {}}
    shares = {
        name: SHARES.get(name, 5) * (QUICKER.get(name, 1.0) if scale.is_quick else 1.0) for name in names
    }
    done_of_all = 0.0
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"  # a worker has one core; read when it imports numpy
    order = sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    with (
        ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool,
        shown("federated", sum(shares.values())) as tell,
    ):
        running = {pool.submit(_timed, name, scale): name for name in order}
        tell(0.0, f"{len(names)} parts")
        for done in as_completed(running):
            name, one = running[done], done.result()
            figures |= one.figures
            figures["seconds"][name] = one.seconds
            figures["cpu_seconds"][name] = one.cpu_seconds
            done_of_all += shares[name]
            _say(f"{name}: {one.seconds} s, of the processor {one.cpu_seconds} s")
            tell(done_of_all, f"{len(figures['seconds'])} of {len(names)} parts")
    return figures


@frozen
class Timed:
    """What a part measured, and how long it took.

    Attributes:
        figures: Its keys.
        seconds: By the clock.
        cpu_seconds: Of the processor.
    """

    figures: Figures
    seconds: float
    cpu_seconds: float


def _timed(name: str, scale: Scale) -> Timed:
    """One part and how long it took. In a worker process."""
    began, used = time.monotonic(), time.process_time()
    found = PARTS[name](scale)
    return Timed(
        figures=found,
        seconds=round(time.monotonic() - began, 1),
        cpu_seconds=round(time.process_time() - used, 1),
    )


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="under four minutes")
    parser.add_argument("--all", action="store_true", help="also K = 10,000")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this part; may be repeated"
    )
    parser.add_argument("--out", type=Path, help="also write the JSON object here")
    asked = parser.parse_args()
    scale = Scale(is_quick=asked.quick, is_all=asked.all)
    left_out = (*(NOT_QUICK if asked.quick else ()), *(() if asked.all else ONLY_ALL))
    figures = measure(asked.part or [name for name in PARTS if name not in left_out], scale)
    if asked.out is not None:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")
    show(figures, is_json=asked.json)


if __name__ == "__main__":
    main()

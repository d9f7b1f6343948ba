"""`adserver federated simulate`: a strategy on thousands of devices in this process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.federated import settings_in
from adserver.cli.options import JsonOption
from adserver.views.printing import print_json, progress_bars
from maskedlark.federated.kinds import STRATEGY_KINDS, ServerOptimizerKind
from maskedlark.terminal.options import option, panel

if TYPE_CHECKING:
    from adserver.simulating.example_files import ExampleSet
    from adserver.simulating.simulator import SimulatedRound
    from adserver.views.simulation import SimulationResult
    from maskedlark.federated.populations import Population
    from maskedlark.federated.strategy import Strategy

_strategy = panel("The strategy")
_device = panel("Training on a device")
_shown = panel("Output")


def _simulate_command(
    *,
    examples: Annotated[
        Path,
        option(
            "A folder with MNIST's idx files, or a CSV file with --label, and --user if it has users. All "
            "other columns are features: numbers, and words written as numbers, such as a column of 0 and 1 "
            "for each word. Encoding and delimiter are detected.",
            exists=True,
        ),
    ],
    strategy: Annotated[str, _strategy(f"The strategy: one of {', '.join(STRATEGY_KINDS)}.")] = "dp-fedavg",
    settings: Annotated[
        Path | None,
        _strategy(
            'JSON file with settings of the strategy, such as {"bound": {"is_per_layer": true}}; '
            "options override it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    devices: Annotated[int, _strategy("Number of devices; with --user, the number of users.", min=1)] = 100,
    sampling_rate: Annotated[
        float | None, _strategy("Probability that a device is drawn in a round.", show_default="0.1")
    ] = None,
    rounds: Annotated[int | None, _strategy("Rounds.", min=1, show_default="20")] = None,
    noise_multiplier: Annotated[
        float | None, _strategy("Noise on a sum, divided by its sensitivity.", show_default="0")
    ] = None,
    clip_norm: Annotated[float | None, _strategy("Bound on the norm of an update.", show_default="1")] = None,
    server: Annotated[
        ServerOptimizerKind | None, _strategy("The server's optimizer.", show_default="averaging")
    ] = None,
    server_rate: Annotated[
        float | None, _strategy("Learning rate of the server's optimizer.", show_default="1")
    ] = None,
    epochs: Annotated[
        int | None, _device("Passes over the device's examples.", min=1, show_default="1")
    ] = None,
    batch_size: Annotated[
        int | None, _device("Examples in a step of the device.", min=1, show_default="10")
    ] = None,
    learning_rate: Annotated[
        float | None, _device("Learning rate of the device's steps.", show_default="0.1")
    ] = None,
    hidden: Annotated[
        list[int] | None, _device("Width of a hidden layer; repeatable.", min=1, show_default="none")
    ] = None,
    shard_size: Annotated[
        int,
        _device(
            "Without --user: each device gets two shards of this many examples, each of one label.", min=1
        ),
    ] = 300,
    label: Annotated[str, _device("The CSV's label column.")] = "",
    user: Annotated[str, _device("The CSV's user column: one device per user.")] = "",
    least_examples: Annotated[int, _device("Leave out users with fewer examples.", min=1)] = 1,
    seed: Annotated[
        int, option("Seed for sampling, batches and noise: the same seed gives the same result.")
    ] = 1,
    delta: Annotated[float, option("Delta at which epsilon is shown.")] = 1e-5,
    eval_every: Annotated[int, _shown("Evaluate after every so many rounds.", min=1)] = 5,
    out: Annotated[
        list[Path] | None, _shown("Write the result to a .csv or .png file; repeatable.", dir_okay=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a strategy on simulated devices in this process, with the code that real devices run."""
    from adserver.simulating.example_files import read_examples
    from adserver.simulating.simulator import Simulated, SimulatedRound, simulate
    from maskedlark.canonical import build
    from maskedlark.federated.dense import DenseModel
    from maskedlark.federated.local_training import Parameters
    from maskedlark.federated.strategies import strategy_class
    from maskedlark.randomness import seeded

    held = read_examples(examples, label=label, user=user)
    population = _population(held, devices=devices, shard_size=shard_size, least=least_examples, seed=seed)
    given = {
        # With --user there are as many as users, whatever --devices says
        "devices": len(population),
        "sampling_rate": sampling_rate,
        "rounds": rounds,
        "noise_multiplier": noise_multiplier,
        "bound": {"clip_norm": clip_norm},
        "server": {"kind": server, "learning_rate": server_rate},
        "local": {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate},
    }
    # Below what the file says, which is below what was typed: an option's default is None
    defaults = {"sampling_rate": 0.1, "rounds": 20, "noise_multiplier": 0.0, "bound": {"clip_norm": 1.0}}
    chosen = build(strategy_class(strategy), _merge(defaults, _merge(settings_in(settings), given)))
    model = DenseModel(widths=(held.width, *(hidden or ()), held.classes))
    simulated = Simulated(
        strategy=chosen,
        model=model,
        population=population,
        features=held.training.features,
        labels=held.training.labels,
    )

    def evaluate(weights: Parameters) -> dict[str, float]:
        return {
            "accuracy": model.accuracy(weights, held.evaluation),
            "loss": model.loss(weights, held.evaluation),
        }

    done: list[SimulatedRound] = []
    with progress_bars() as bars:
        bar = bars.add_task(strategy, total=chosen.rounds)
        for one in simulate(
            simulated, model.initial(seeded(seed)), seed=seed, evaluate=evaluate, eval_every=eval_every
        ):
            done.append(one)
            bars.update(bar, completed=one.round)
    result = _result(chosen, done, delta)
    for path in out or ():
        result.write(path)
    if as_json:
        print_json(result.as_json())
        return
    result.print()
    typer.echo(_privacy(result))


def _population(held: "ExampleSet", *, devices: int, shard_size: int, least: int, seed: int) -> "Population":
    """Build one device a user, or deal shards to devices."""
    from maskedlark.federated.populations import Population
    from maskedlark.randomness import seeded

    if held.users:
        return Population.by_user(held.users, least=least)
    return Population.in_shards(
        held.training.labels,
        devices=devices,
        shards_each=2,
        shard_size=shard_size,
        randomness=seeded(seed, "population"),
    )


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge settings section by section; None keeps what is under it, an empty section is dropped."""
    merged = dict(under)
    for name, value in over.items():
        if isinstance(value, dict):
            below = under.get(name)
            section = _merge(below if isinstance(below, dict) else {}, value)
            if section:
                merged[name] = section
        elif value is not None:
            merged[name] = value
    return merged


def _result(strategy: "Strategy", done: "list[SimulatedRound]", delta: float) -> "SimulationResult":
    """Return the run and its cost: for a user with a curator, or for an event with local noise."""
    from adserver.views.simulation import SimulationResult
    from maskedlark.federated.moments2016 import MomentsStep, epsilon_2016
    from maskedlark.federated.strategies.line import Line
    from maskedlark.privacy.accounting import compose_epsilon

    epsilon: float | None = None
    old: float | None = None
    unit = "user"
    # LINE's noise protects each event by itself, the others' a user over all rounds
    if isinstance(strategy, Line):
        epsilon, delta, unit = strategy.epsilon, strategy.delta, "event"
    elif strategy.noise_multiplier and (charges := strategy.charges(done[-1].round)):
        epsilon = compose_epsilon(charges, delta)
        # The papers' accountant is beside ours, so that their tables can be read against it
        steps = [
            MomentsStep(
                sampling_rate=one.sampling_rate, noise_multiplier=one.noise_multiplier, rounds=one.rounds
            )
            for one in charges
        ]
        old = epsilon_2016(steps, delta)
    return SimulationResult(
        strategy=strategy.kind,
        devices=strategy.devices,
        rounds=done,
        epsilon=epsilon,
        epsilon_2016=old,
        delta=delta,
        unit=unit,
    )


def _privacy(result: "SimulationResult") -> str:
    """Describe in one line what the run costs."""
    if result.epsilon is None:
        return "no noise: the result is not private"
    if result.unit == "event":
        return (
            f"each event, used once: epsilon {result.epsilon:.4g}, delta {result.delta:.2g}, "
            "against every party"
        )
    return (
        f"each user, added or removed: epsilon {result.epsilon:.4g} at delta {result.delta:.2g}, with"
        f" sampling hidden by cover (by the accountant of 2016: {result.epsilon_2016:.4g})"
    )

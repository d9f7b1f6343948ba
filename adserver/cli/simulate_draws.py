"""`adserver federated simulate-draws`: draw and discard with all its clients in this process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from adserver.cli.options import JsonOption
from adserver.views.printing import print_json, print_table, progress_bars
from maskedlark.federated.kinds import NoiseUnit
from maskedlark.terminal.options import option

if TYPE_CHECKING:
    import numpy as np

    from maskedlark.federated.draw_and_discard import DrawAndDiscard

_BAR_STEP: Final = 100


def _simulate_draws_command(
    *,
    examples: Annotated[Path, option("A folder with MNIST's idx files, or a CSV file.", exists=True)],
    label: Annotated[str, option("The CSV's label column.")] = "",
    user: Annotated[str, option("The CSV's user column, which is left out of the features.")] = "",
    instances: Annotated[int, option("Number of instances that the server keeps.")] = 10,
    learning_rate: Annotated[float, option("Gamma, the learning rate of a client's step.")] = 0.001,
    gradient_clip: Annotated[float, option("Bound on a coordinate, or on the L1 norm.")] = 1.0,
    epsilon: Annotated[
        float | None, option("Epsilon of one update, for the unit.", show_default="no noise")
    ] = None,
    unit: Annotated[
        NoiseUnit, option("The unit that epsilon protects: one coordinate, or the whole update.")
    ] = (NoiseUnit.FEATURE),
    each: Annotated[int, option("Number of examples of a client.", min=1)] = 10,
    passes: Annotated[int, option("Number of updates of each client.", min=1)] = 1,
    in_flight: Annotated[int, option("Number of updates in flight at a time.", min=0)] = 0,
    seed: Annotated[int, option("Seed: the same seed gives the same result.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Run draw and discard on simulated clients: multinomial regression, one client after the other."""
    import numpy as np

    from adserver.simulating.draw_and_discard import DrawSimulation
    from adserver.simulating.example_files import read_examples
    from maskedlark.canonical import build
    from maskedlark.federated.draw_and_discard import DrawAndDiscard
    from maskedlark.federated.generalised_linear import Batches, Multinomial
    from maskedlark.federated.local_training import shuffle
    from maskedlark.federated.populations import Population
    from maskedlark.randomness import seeded

    byte = np.float32(255)
    given = {
        "instances": instances,
        "learning_rate": learning_rate,
        "gradient_clip": gradient_clip,
        "epsilon": epsilon,
        "unit": unit,
    }
    settings = build(DrawAndDiscard, given)
    held = read_examples(examples, label=label, user=user)
    model = Multinomial(features=held.width, classes=held.classes)
    dealt = Population.in_equal_parts(len(held.training), each=each, randomness=seeded(seed, "population"))
    members = np.stack(dealt.members)
    clients = Batches(features=held.training.features[members] / byte, labels=held.training.labels[members])
    stream = seeded(seed, "simulated draws")
    order = np.concatenate([shuffle(len(members), stream) for _ in range(passes)])
    models = settings.initial(np.zeros(model.size), stream)
    simulation = DrawSimulation(settings=settings, model=model, batches=clients, in_flight=in_flight)
    returns = 0
    with progress_bars() as bars:
        # The last ones in flight never return
        bar = bars.add_task("draw-and-discard", total=len(order) - in_flight)
        for returns, _ in enumerate(simulation.run(models, order, stream), start=1):
            # An update is faster than a redrawn bar
            if returns % _BAR_STEP == 0:
                bars.update(bar, completed=returns)
    weights = settings.mean(models)
    features, labels = held.evaluation.features / byte, held.evaluation.labels
    law = settings.spread(in_flight)
    told: dict[str, Any] = {
        "strategy": settings.kind,
        "clients": len(members),
        "updates": returns,
        "instances": instances,
        "accuracy": round(model.accuracy(weights, features, labels), 6),
        "loss": round(model.loss(weights, features, labels), 6),
        "unit": unit.value,
        "epsilon": epsilon,
        "epsilon_of_a_whole_update": None if epsilon is None else settings.model_epsilon(model.size),
        # About 1 if the instances keep the spread that the paper derives; one instance has none
        "variance_over_its_law": _variance(models, settings) / law if instances > 1 else None,
    }
    if as_json:
        print_json(told)
        return
    print_table(("figure", "value"), list(told.items()))


def _variance(models: "np.ndarray", settings: "DrawAndDiscard") -> float:
    """Return the mean over weights of the variance over instances, in the weights' units."""
    import numpy as np

    return float(np.ldexp(models.astype(np.float64), -settings.frac_bits).var(axis=0, ddof=1).mean())

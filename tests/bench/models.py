"""What quickstart's defaults train on data of the field, with the exact engine and both helpers' noise.

`adult_quickstart_auc`, `_log_loss`: Adult's 32,561 rows, of which a fifth are not reported, tested on its
16,281 others, at epsilon 3 and 8 against a colluding helper, with everything that quickstart chooses.
`rare_positives_mean_over_rate`: the same with one positive in a hundred: the mean prediction over the true
rate. The other modules of this folder named `models_` have the other keys.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from adserver.training.inference import Evaluation, evaluate
from tests.bench.examples import adult, rare, split
from tests.bench.harness import bench_parser, show
from tests.bench.models_heads import heads_figures
from tests.bench.models_ids import ids_figures
from tests.bench.models_images import images_figures
from tests.bench.quickstart_job import train_by_defaults


def measure(seeds: int, epsilon: float = 3.0) -> dict[str, Any]:
    """Adult's figures, each the mean over seeds; spreads end in `_spread`."""
    encoder, seen, test = adult()
    whole, few = list[Evaluation](), list[Evaluation]()
    for seed in range(1, seeds + 1):
        for found, records, tested in ((whole, seen, test), (few, rare(seen, seed), rare(test, seed))):
            trained = train_by_defaults(encoder, split(records, seed), epsilon=epsilon, seed=seed)
            found.append(evaluate(trained.onnx, tested.features, tested.labels, trained.loss))
    return {
        **_mean_and_spread("adult_quickstart_auc", [one.auc for one in whole]),
        **_mean_and_spread("adult_quickstart_log_loss", [one.loss for one in whole]),
        **_mean_and_spread("adult_quickstart_mean_over_rate", [one.mean_over_rate for one in whole]),
        "adult_quickstart_epsilon": trained.cost.ad_server,
        "adult_quickstart_collusion_epsilon": trained.cost.colluding,
        **_mean_and_spread("rare_positives_mean_over_rate", [one.mean_over_rate for one in few]),
        **_mean_and_spread("rare_positives_auc", [one.auc for one in few]),
    }


def _mean_and_spread(name: str, values: Sequence[float | None]) -> dict[str, float]:
    found = np.array(values, np.float64)
    spread = {f"{name}_spread": float(found.std(ddof=1))} if len(found) > 1 else {}
    return {name: float(found.mean())} | spread


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds: under ten minutes on two idle cores"
    )
    is_quick = (arguments := parser.parse_args()).quick
    seeds, of_heads = (1, 6) if is_quick else (3, 12)
    found = {
        **measure(seeds=3),  # single runs differ by .002
        **ids_figures(seeds),
        **heads_figures(of_heads, is_halved=not is_quick),
        **images_figures(seeds),
    }
    show(found, is_json=arguments.json)


if __name__ == "__main__":
    main()

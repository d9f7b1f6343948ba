"""Draws from OpenDP's samplers, counted.

`pip install opendp==VERSION` somewhere, run this there, and it rewrites opendp.json beside it.

OpenDP is no dependency: at the scales of a round its samplers give some 60,000 to 80,000 values a second
where ours give 4 million.
"""

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import opendp.prelude as dp  # type: ignore[import-not-found]  # no dependency, see above

DRAWS = 200_000
SCALES = (1, 3, 25)


def main() -> None:
    """Count the integers that OpenDP draws at each scale."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int), size=DRAWS)
    counts = {}
    for scale in SCALES:
        laplace = dp.m.make_laplace(space, dp.l1_distance(T=int), scale=float(scale))
        gaussian = dp.m.make_gaussian(space, dp.l2_distance(T=float), scale=float(scale))
        counts[f"laplace {scale}"] = _counted(laplace)
        counts[f"gaussian {scale}"] = _counted(gaussian)
    found = {"opendp": version("opendp"), "draws": DRAWS, "counts": counts}
    Path(__file__).with_name("opendp.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _counted(mechanism: dp.Measurement) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(mechanism([0] * DRAWS)).items())}


if __name__ == "__main__":
    main()

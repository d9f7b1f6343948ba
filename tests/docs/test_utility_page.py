"""docs/explanation/utility.md says what was measured, and what was measured was noised as it says."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from maskedlark.model.weights import quantise
from maskedlark.numbers.field import reconstruct, share
from maskedlark.randomness import seeded
from maskedlark.reports.input_shares import InputShares
from tests.bench import privacy_report
from tests.bench.privacy_report import Figure
from tests.bench.private_training import SETUPS, untrained
from tests.builders import world

DOCS = Path(__file__).parents[2] / "docs"
POINTS = privacy_report.read(DOCS / "explanation" / "utility.json")


def test_the_tables_are_those_of_the_stored_figures() -> None:
    page = (DOCS / "explanation" / "utility.md").read_text()
    assert privacy_report.tables(POINTS) in page
    assert privacy_report.gap(POINTS) in page


@pytest.mark.parametrize("figure", list(Figure))
def test_every_picture_is_there(figure: Figure) -> None:
    assert (DOCS / "img" / f"utility-{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert f"utility-{figure}.png" in (DOCS / "explanation" / "utility.md").read_text()


def test_every_noised_training_was_charged_no_more_than_it_was_calibrated_to() -> None:
    noised = [
        point
        for point in POINTS
        if point.figure is Figure.EPSILON and math.isfinite(point.x) and not math.isnan(point.epsilon)
    ]
    assert len({point.x for point in noised}) == 5
    for point in noised:
        assert point.epsilon <= point.x
        if point.series == "noise: split":
            assert point.epsilon > 0.95 * point.x


def test_a_split_noise_is_opacus_noise_and_the_full_one_is_root_two_of_it() -> None:
    by_x: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for point in POINTS:
        if point.figure is Figure.EPSILON and math.isfinite(point.x):
            by_x[point.setup, point.x][point.series] = point.noise_multiplier
    assert len(by_x) == 15
    for names in by_x.values():
        opacus = next(noise for name, noise in names.items() if name.startswith("DP-SGD"))
        assert names["noise: split"] == names["full noise at each helper"] == pytest.approx(opacus, rel=0.04)


def test_the_shortcut_of_the_trainings_sums_to_what_random_masks_and_a_decoy_do() -> None:
    setup = SETUPS[0]
    model = untrained(setup, 0)
    task = world(num_features=30, labels={"kind": "classes", "size": 2}).task
    engine = choose_engine(model, setup.loss, task.clip, 2)
    weights = tuple(quantise(value) for value in model.initial_values)
    rng = np.random.default_rng(0)
    features = rng.integers(0, 256, (50, 30), dtype=np.uint8)
    real = rng.integers(0, 2, (50, 1)).astype(np.uint32)
    both = np.array([[0, 1]] * 50, np.uint32)
    masks = share((both == real).astype(np.uint64), seeded(0, "masks"))
    parts = [
        engine.masked_sum(weights, InputShares(features=features, labels=both, mask_shares=mask)).vector
        for mask in (masks.share_0, masks.share_1)
    ]
    short = engine.masked_sum(
        weights, InputShares(features=features, labels=real, mask_shares=np.ones((50, 1), np.uint64))
    )
    assert (reconstruct(parts[0], parts[1]) == short.vector).all()

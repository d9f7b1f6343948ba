"""What the client draws in Chromium follows the laws that the protocol asks for."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest
from playwright.sync_api import Page
from scipy import stats

from maskedlark.reports.task import LabelSpace
from tests.browser_sim.js.scene import open_world
from tests.browser_sim.js.site import Site
from tests.vectors.browser.generate import vector_world

DRAWS: Final = 100_000
LEAST_P: Final = 1e-9
FEATURE_UNITS: Final = 255 << 16

CANDIDATES = """
async ({ labels, count, label, draws }) => {
  const core = await import("/dist/core.js");
  const seen = {};
  for (let at = 0; at < draws; at++) {
    const made = core.candidates(labels, count, label, core.systemRandomness);
    const key = JSON.stringify([made.labels, made.mask.indexOf(1n)]);
    seen[key] = (seen[key] ?? 0) + 1;
  }
  return Object.entries(seen).map(([key, times]) => [...JSON.parse(key), times]);
}
"""
NOISE = """
async ({ scale, draws }) => {
  const core = await import("/dist/core.js");
  return core.discreteLaplace(scale, draws, core.systemRandomness);
}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site({"/": "<!doctype html><title>draws</title>"}) as served:
        yield served


def drawn(
    site: Site, page: Page, labels: LabelSpace, count: int, label: float | None
) -> list[tuple[list[int], int, int]]:
    """(candidates, place of the real one or -1, how often)."""
    page.goto(site.origin)
    given = {
        "kind": labels.kind.value,
        "size": labels.size,
        "numBuckets": labels.num_buckets,
        "defaultLabel": labels.default_label,
        "reachable": list(labels.reachable()),
    }
    told = page.evaluate(CANDIDATES, {"labels": given, "count": count, "label": label, "draws": DRAWS})
    return [(one[0], one[1], one[2]) for one in told]


def fits(seen: Sequence[int], expected: Sequence[float]) -> bool:
    return float(stats.chisquare(seen, expected).pvalue) > LEAST_P


def test_decoys_and_their_order_are_uniform(site: Site, page: Page) -> None:
    labels = vector_world("few decoys of fifty").task.labels
    told = drawn(site, page, labels, 5, 11.0)
    places, decoys = Counter[int](), Counter[int]()
    for candidates, real, times in told:
        assert candidates[real] == 11
        assert labels.default_label in candidates
        places[real] += times
        decoys.update({one: times for one in candidates if one not in (11, labels.default_label)})
    assert sum(places.values()) == DRAWS
    assert fits([places[at] for at in range(5)], [DRAWS / 5] * 5)
    others = [one for one in labels.reachable() if one not in (11, labels.default_label)]
    # Three of 48 without replacement: counts vary less than independent ones, by the factor (48 - 3) / 47.
    seen, expected = np.array([decoys[one] for one in others]), 3 * DRAWS / 48
    spread = ((seen - expected) ** 2 / (expected * 45 / 48)).sum() * 47 / 48
    assert stats.chi2.sf(spread, 47) > LEAST_P
    assert stats.chi2.cdf(spread, 47) > LEAST_P


def test_a_quantised_label_has_the_value_as_its_expectation(site: Site, page: Page) -> None:
    labels = vector_world("values").task.labels
    value = 37.3
    told = drawn(site, page, labels, 4, value)
    seen: Counter[int] = Counter()
    for candidates, real, times in told:
        seen[candidates[real]] += times
    law = quantised_law(labels, value)
    assert set(seen) <= set(law)
    assert fits([seen[one] for one in law], [float(law[one]) * DRAWS for one in law])
    assert sum(label * chance for label, chance in law.items()) == Fraction(value)


def quantised_law(labels: LabelSpace, value: float) -> dict[int, Fraction]:
    """The exact probability of each label: to a neighbouring boundary, then to an integer."""
    law: dict[int, Fraction] = {}
    boundaries = labels.boundaries()
    position = Fraction(value) * (len(boundaries) - 1) / (labels.size - 1)
    low = math.floor(position)
    for boundary, chance in ((boundaries[low], 1 - (position - low)), (boundaries[low + 1], position - low)):
        floor = math.floor(boundary)
        for label, share in ((floor, 1 - (boundary - floor)), (floor + 1, boundary - floor)):
            if share:
                law[label] = law.get(label, Fraction(0)) + chance * share
    return law


@pytest.mark.parametrize("scale", [1, 3, 1000])
def test_small_noise_has_the_probabilities_of_the_definition(site: Site, page: Page, scale: int) -> None:
    page.goto(site.origin)
    seen = Counter(page.evaluate(NOISE, {"scale": scale, "draws": DRAWS}))
    mass = math.tanh(1 / (2 * scale))
    cells = max(1, scale // 4)  # cells of some integers each, so that each has enough
    edge = int(scale * math.log(mass * cells * DRAWS / 20))
    cell_of = {x: (abs(x) // cells) * (1 if x >= 0 else -1) if abs(x) <= edge else "far" for x in seen}
    chances: dict[Any, float] = {}
    for x in range(-edge, edge + 1):
        cell = (abs(x) // cells) * (1 if x >= 0 else -1)
        chances[cell] = chances.get(cell, 0.0) + mass * math.exp(-abs(x) / scale)
    chances["far"] = 1 - sum(chances.values())
    counts = Counter[Any]()
    for x, times in seen.items():
        counts[cell_of[x]] += times
    assert set(counts) <= set(chances)
    assert fits([counts[cell] for cell in chances], [chance * DRAWS for chance in chances.values()])


def test_the_noise_of_features_has_the_shape_of_its_law(site: Site, page: Page) -> None:
    page.goto(site.origin)
    values = np.array(page.evaluate(NOISE, {"scale": FEATURE_UNITS, "draws": DRAWS}), float)
    spread = values + np.random.default_rng(5).uniform(-0.5, 0.5, DRAWS)
    assert stats.kstest(spread, stats.laplace(scale=FEATURE_UNITS).cdf).pvalue > LEAST_P


def test_delays_of_conversions_expiries_and_fakes_are_alike(scenes: Any) -> None:
    scene = scenes(open_world(fake_report_rate=0.5))
    scene.open(maxDelayS=1e6)
    delays = scene.page.frames[1].evaluate(
        """async (rounds) => {
          const { Store } = await import("/dist/vault.js");
          const engine = await window.engine;
          const store = await Store.open();
          const task = (await store.read((transaction) => transaction.taskKeys()))[0];
          const now = Date.now() / 1000, measured = null, priority = 0, seenAt = now, conversionOrigins = [];
          const matchValues = [5], since = now - 1, impressionOrigins = [];
          for (let at = 0; at < rounds; at++) {
            const features = Uint8Array.of(1, 2, 3, 4), matchValue = at % 2 ? 5 : 6;
            const due = now + 1, conversion = null;
            await engine.keepImpression({
              task, due, features, measured, matchValue, priority, seenAt, conversionOrigins, conversion,
            });
            const said = { label: 1, values: null, matchValues };
            const converted = { task, due, at: now, ...said, since, impressionOrigins };
            if (at % 2) await engine.keepConversion(converted);
          }
          Date.now = () => 1000 * (now + 1);
          await engine.run();
          const rows = await store.read((transaction) => transaction.due("waiting", task));
          store.close();
          return rows.map(({ value }) => [value.label, value.due - now - 1]);
        }""",
        400,
    )
    by_label = {label: [delay for one, delay in delays if one == label] for label in (1, 0, None)}
    assert min(map(len, by_label.values())) >= 100
    for one, other in ((1, 0), (0, None), (1, None)):
        assert stats.ks_2samp(by_label[one], by_label[other]).pvalue > LEAST_P
    assert stats.kstest([delay for _, delay in delays], stats.uniform(0, 1e6).cdf).pvalue > LEAST_P

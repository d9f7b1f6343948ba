"""`make bench-browser`: the client in Chromium: are its reports Python's, how large is it, how fast.

Each suite's reports are made in a page and opened by both helpers' code; `reports_equal` counts those that
both helpers admit with equal tags, and in which both read what the page was given. Kills and lost answers
come last.

    python -m tests.bench.browser [--json] [--reports 1000] [--kills 50]
"""

import time
from typing import Any, Final

import numpy as np
from playwright.sync_api import Page

from maskedlark.canonical import encode
from maskedlark.numbers.field import reconstruct
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.rpc.wire import decode_report
from tests.bench.harness import bench_parser, show
from tests.bench.processor import processor
from tests.browser_sim.js import kills
from tests.browser_sim.js.chromium import chromium
from tests.browser_sim.js.site import Site
from tests.browser_sim.js.test_dist import is_rebuilt, packed
from tests.builders import World, world

HOUR: Final = 3_600
SEALS: Final = 60
MAKE: Final = """
async ({ bundle, trusted, rows, labels }) => {
  const core = await import("/dist/core.js");
  const opened = await core.openBundle(core.fromHex(bundle), trusted.map(core.fromHex));
  const sealer = await core.Sealer.of(opened), made = [];
  for (const [at, features] of rows.entries()) {
    const example = { features: Uint8Array.from(features), label: labels[at] };
    made.push(core.toHex(await sealer.report(example, Date.now() / 1000)));
  }
  return made;
}
"""
TIME: Final = """
async ({ bundle, trusted, features, count }) => {
  const core = await import("/dist/core.js");
  const opened = await core.openBundle(core.fromHex(bundle), trusted.map(core.fromHex));
  const sealer = await core.Sealer.of(opened), times = [];
  let long = 0;
  new PerformanceObserver((list) => { long += list.getEntries().length; }).observe({ type: "longtask" });
  for (let at = 0; at < count; at++) {
    await new Promise((resolve) => setTimeout(resolve));
    const began = performance.now();
    await sealer.report({ features: new Uint8Array(features), label: at % 10 }, Date.now() / 1000);
    times.push(performance.now() - began);
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
  times.sort((left, right) => left - right);
  return { median: times[times.length >> 1], long };
}
"""


def open_task(suite: HpkeSuite, **changes: Any) -> World:
    """A task that is open now."""
    now = int(time.time())
    return world(suite=suite, starts_at=now - HOUR, expires_at=now + 24 * HOUR, **changes)


def told(of: World) -> dict[str, Any]:
    """What a page is given of a task."""
    return {
        "bundle": encode(of.bundle).hex(),
        "trusted": [helper.verify_key.hex() for helper in of.task.helpers],
    }


def equal_reports(page: Page, suite: HpkeSuite, count: int, *, is_proven: bool) -> int:
    """How many of a page's reports both helpers admit with equal tags, and read as they were given."""
    of = open_task(suite, proof=is_proven)
    dice = np.random.default_rng(1)
    rows, labels = dice.integers(0, 256, (count, of.task.num_features)), dice.integers(0, 2, count)
    rows[:, 0], rows[:, 1] = np.arange(count) % 256, np.arange(count) // 256
    made = page.evaluate(MAKE, {**told(of), "rows": rows.tolist(), "labels": labels.tolist()})
    given = {tuple(row): label for row, label in zip(rows.tolist(), labels.tolist(), strict=True)}
    first, second = of.datasets([decode_report(bytes.fromhex(one)) for one in made])
    assert first.dataset_id == second.dataset_id
    masks = reconstruct(first.shares.mask_shares, second.shares.mask_shares)
    real = first.shares.labels[np.arange(len(masks)), masks.argmax(axis=1)].tolist()
    read = zip(first.shares.features.tolist(), real, masks.sum(axis=1).tolist(), strict=True)
    return sum(ones == 1 and given.get(tuple(row)) == label for row, label, ones in read)


def seal_ms(page: Page, suite: HpkeSuite) -> tuple[float, int]:
    """Milliseconds a report of 784 features and ten classes (the median), and tasks over 50 ms meanwhile."""
    labels = {"labels": {"kind": "classes", "size": 10}, "num_decoys": 9}
    of = open_task(suite, num_features=784, **labels)
    page.evaluate(TIME, {**told(of), "features": 784, "count": 5})  # loads what is loaded lazily
    timed = page.evaluate(TIME, {**told(of), "features": 784, "count": SEALS})
    return round(timed["median"], 2), timed["long"]


def measure(reports: int, num_kills: int) -> dict[str, Any]:
    """Everything, as one object."""
    figures: dict[str, Any] = {"processor": processor()}
    with chromium() as browser, Site({"/": "<!doctype html><title>bench</title>"}) as site:
        figures["chromium"] = browser.version
        page = browser.new_page()
        page.goto(site.origin)
        equal = {
            suite.value: equal_reports(page, suite, reports, is_proven=number % 2 == 1)
            for number, suite in enumerate(HpkeSuite)
        }
        figures["reports_equal"] = sum(equal.values())
        figures["reports_equal_by_suite"] = equal
        figures["seal_ms_784"], long = seal_ms(page, HpkeSuite.X25519_AES128GCM)
        figures["seal_ms_784_hybrid"], more = seal_ms(page, HpkeSuite.MLKEM768_X25519_AES128GCM)
        figures["long_tasks"] = long + more
    figures["core_gzip_bytes"] = packed("core.js", "chunk-*.js")
    figures["hybrid_gzip_bytes"] = packed("further_suites-*.js")
    figures["stub_gzip_bytes"] = packed("stub.js")
    figures["rebuild_identical"] = is_rebuilt("npm")
    outcome = kills.run(num_kills, seed=time.time_ns() % 2**32)
    figures |= {
        "kills": outcome.kills,
        "reports_acknowledged": outcome.acknowledged,
        "reports_lost": outcome.lost,
        "reports_doubled": outcome.doubled,
    }
    return figures


def main() -> None:
    """The command line."""
    parser = bench_parser(__doc__)
    parser.add_argument("--reports", type=int, default=1_000, help="reports of each of the four suites")
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    show(measure(given.reports, given.kills), is_json=given.json)


if __name__ == "__main__":
    main()

"""Kills of Chromium and lost answers lose no report and count none twice.

`make bench-browser` kills 50 times.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.browser_sim.js.chromium import chromium_path
from tests.browser_sim.js.kills import run

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_killed_browser_loses_no_report_and_sends_none_that_counts_twice() -> None:
    chromium_path()
    with ThreadPoolExecutor(1) as apart:  # playwright takes one driver a thread, and other tests have theirs
        outcome = apart.submit(run, kills=4, seed=20241122).result()
    assert outcome.acknowledged > 0
    assert (outcome.lost, outcome.doubled, outcome.unasked) == (0, 0, 0)
    assert outcome.uploads > outcome.reported

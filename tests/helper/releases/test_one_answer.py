"""However often a round is asked for, by however many callers at once, before or after restarts.

One answer, one charge.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from tests.helper.parties import Scene

TIMES = 10_000
RESTARTS = 10
THREADS = 8


def test_the_same_round_sent_ten_thousand_times_across_restarts_has_one_distinct_answer(
    tmp_path: Path,
) -> None:
    scene = Scene(
        tmp_path, mechanism="gaussian", epsilon=8.0, collusion_epsilon=80.0
    )  # noise: a second computation would show
    spec = scene.job(scene.seal(), noise_multiplier=20.0, rounds=2)
    scene.start(spec)
    answers: Counter[bytes] = Counter()
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(RESTARTS):
            given = threads.map(lambda _: scene.answer(0, spec, 0), range(TIMES // RESTARTS))
            answers.update(sha256(answer).digest() for answer in given)
            scene.cores[0]._ledger.close()
            scene.restart()
    assert list(answers.values()) == [TIMES]
    assert scene.cores[0].status().counts.rounds_answered == 1

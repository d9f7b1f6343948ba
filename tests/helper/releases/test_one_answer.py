"""However often a round is asked for, by however many callers at once, before or after restarts.

One answer, one charge.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from helper.releases.answering import Call, answer_once
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import Interrupt
from tests.helper.parties import Scene
from tests.refusals import refused

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


@pytest.mark.parametrize(
    ("found", "is_committed", "steps", "answer"),
    [
        ([b"known"], True, ["stored", "hold"], b"known"),
        ([None], True, ["stored", "compute", "hold", "commit"], b"computed"),
        ([None, b"theirs"], False, ["stored", "compute", "hold", "commit", "stored"], b"theirs"),
        ([None, None], False, ["stored", "compute", "hold", "commit", "stored"], None),
    ],
)
def test_an_answer_is_held_before_it_is_charged_and_is_what_was_charged(
    found: list[bytes | None], is_committed: bool, steps: list[str], answer: bytes | None
) -> None:
    done: list[str] = []

    def stored() -> bytes | None:
        done.append("stored")
        return found.pop(0)

    def compute() -> bytes:
        done.append("compute")
        return b"computed"

    def commit(computed: bytes, check: Interrupt) -> bool:
        assert computed == b"computed"
        assert check is call.check_awaited
        done.append("commit")
        return is_committed

    def answered() -> bytes:
        return answer_once(
            call,
            stored=stored,
            compute=compute,
            commit=commit,
            superseded=lambda: JobRefused(JobReason.ROUND_OUT_OF_ORDER, "superseded"),
        )

    call = Call(caller=None, hold=lambda: done.append("hold"))
    if answer is None:
        with refused(JobReason.ROUND_OUT_OF_ORDER, match="superseded"):
            answered()
    else:
        assert answered() == answer
    assert (done, found) == (steps, [])

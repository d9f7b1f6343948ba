"""Which rounds of a job a picture shows: a bounded number of them, each found by its number.

>>> len(rounds_shown(rounds_done=1_000_000, eval_every=20_000, most=500)) <= 2 * 500 + 2
True
"""

import math


def rounds_shown(*, rounds_done: int, eval_every: int, most: int) -> list[int]:
    """The numbers of rounds that stand for a job's whole curve, ascending.

    They are even steps over all rounds, and even steps over those that were evaluated.

    Args:
        rounds_done: How far the job is.
        eval_every: How often it evaluates.
        most: About how many points each kind of curve has.
    """
    step = max(1, math.ceil(rounds_done / most))
    evaluated = eval_every * max(1, math.ceil(rounds_done / (eval_every * most)))
    return sorted({*range(0, rounds_done + 1, step), *range(0, rounds_done + 1, evaluated), rounds_done})

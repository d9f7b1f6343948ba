"""Make a failing run small.

Leave out steps and faults, whole kinds first, then ever smaller pieces, for as long as it still fails.
"""

from collections.abc import Callable, Sequence

Fails = Callable[[frozenset[str]], bool]
"""Whether a run in which only these steps and faults may happen still fails."""


def shrink(happened: Sequence[str], fails: Fails, *, most_runs: int = 200) -> list[str]:
    """A list from which nothing more could be left out within so many runs.

    Args:
        happened: The steps and faults of a failing run.
        fails: Runs a part of them.
        most_runs: How often.
    """
    left = most_runs
    kept = list(happened)
    for kind in dict.fromkeys(map(_kind, happened)):
        without = [name for name in kept if _kind(name) != kind]
        if left and without and len(without) < len(kept):
            left -= 1
            kept = without if fails(frozenset(without)) else kept
    return _in_pieces(kept, fails, most_runs=left)


def _in_pieces(kept: list[str], fails: Fails, *, most_runs: int) -> list[str]:
    """Leave out halves, quarters and so on (Zeller's ddmin)."""
    pieces, runs = 2, 0
    while len(kept) >= 2 and runs < most_runs:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            runs += 1
            without = kept[:start] + kept[start + size :]
            if without and fails(frozenset(without)):
                kept, pieces = without, max(2, pieces - 1)
                break
            if runs >= most_runs:
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), 2 * pieces)
    return kept


def _kind(name: str) -> str:
    """Of a fault, what goes wrong, wherever it does; of a step, what it is without its number."""
    step, _, fault = name.partition("=")
    return fault or step.rstrip("0123456789. ")

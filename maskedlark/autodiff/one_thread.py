"""The state of torch in which sums have one order: one thread, subnormal numbers counted as zero.

with one_thread():
gradients = ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

_DENORMAL: Final = 5e-324


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, and count numbers that are not normal as zero.

    How a sum is split over threads would decide its last bits. Arithmetic on subnormal numbers takes a
    hundred times longer, so a graph that is made for it could show by the time which records it was evaluated
    on. The state before is brought back; it is of this thread of the process alone.
    """
    threads, was_flushed = torch.get_num_threads(), _is_flushed()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_flushed)
        torch.set_num_threads(threads)


def _is_flushed() -> bool:
    """Return whether this thread treats subnormal numbers as zero."""
    # torch sets this mode but does not report it, so that an operation has to show it.
    return not bool((torch.full((1,), _DENORMAL, dtype=torch.float64) * 1.0).item())

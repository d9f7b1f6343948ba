"""Which worker works on which segment.

>>> import collections
>>> shared = assign([bytes([n]) for n in range(10)], [b"north", b"south", b"west"])
>>> sorted(collections.Counter(shared.values()).values())
[3, 3, 4]
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256


def assign(segments: Sequence[bytes], workers: Sequence[bytes]) -> dict[bytes, bytes]:
    """Assign a worker to each segment, stable when other workers come or go.

    Rendezvous hashing with bounded loads: each segment goes to the worker that ranks highest for it and has
    less than its share.

    Guarantees: loads differ by at most one segment from equal shares rounded up; the result depends on the
        names alone.
    """
    most = -(-len(segments) // len(workers)) if workers else 0
    loads: Counter[bytes] = Counter()
    chosen: dict[bytes, bytes] = {}
    for segment in sorted(segments):
        ranked = sorted(workers, key=lambda worker: sha256(worker + segment).digest())
        chosen[segment] = next(worker for worker in ranked if loads[worker] < most)
        loads[chosen[segment]] += 1
    return chosen

"""Steps 2 and 3 for many browsers: turn uploads into sealed reports, in order, on as many cores as there are.

Every report draws its decoys, masks and id from a separate stream, named by its place in the upload order, so
the result does not depend on how the work is distributed. HPKE's ephemeral keys are the library's own:
ciphertexts differ from run to run, plaintexts do not.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from functools import lru_cache, partial
from itertools import islice, repeat
from multiprocessing import get_context
from time import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from browser_sim.people import Upload
from browser_sim.sealed_batch import SealedBatch
from browser_sim.source import MeasuredRecords, SourceRecords
from maskedlark import canonical
from maskedlark.frozen import frozen
from maskedlark.randomness import below
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import Sealer
from maskedlark.runtime import gc_tuning

_MAX_BATCH: Final = 1_024
_TARGET_BATCH_BYTES: Final = 1 << 20
# Starting a process costs about as much as sealing this many reports.
_REPORTS_PER_WORKER: Final = 4_000


@frozen
class _Batch:
    """Reports to seal: they travel to another process quickly, and are complete but for the task.

    Attributes:
        start: The place of the first in the upload order.
        at_s: When each is uploaded.
        features: u8 (n, d).
        labels: None for a fake report.
        measured: n rows, zeros for the values of a fake; None in a task without measurement.
    """

    start: int
    at_s: list[float]
    features: NDArray[np.uint8] = field(repr=False)
    labels: list[float | None] = field(repr=False)
    measured: MeasuredRecords | None

    def examples(self) -> Iterator[Example]:
        """Yield what each browser knows."""
        of = self.measured
        measured: Iterable[MeasuredValues | None] = repeat(None, len(self.labels))
        if of is not None:
            rows = zip(of.keys.tolist(), of.values.tolist(), strict=True)
            measured = (MeasuredValues(keys=tuple(keys), values=tuple(values)) for keys, values in rows)
        for features, label, values in zip(self.features, self.labels, measured, strict=True):
            yield Example(features=features, label=label, measured=values)


def seal_all(
    bundle: TaskBundle, uploads: Sequence[Upload], records: SourceRecords, draws: Draws, *, workers: int
) -> Iterator[SealedBatch]:
    """Yield sealed reports in upload order, in batches of about a mebibyte.

    Args:
        bundle: The task, verified.
        uploads: What to report and when.
        records: The rows that uploads name.
        draws: One stream per report.
        workers: Processes that seal, this one among them.

    Guarantees: with a seed, the same report ids, time buckets and plaintexts for any number of workers. At
        most two batches per worker are in memory at once.

    Raises:
        InvalidTask: a record does not fit the task.
    """
    size = _batch_size(bundle.task)
    batches = (
        _batch(records, draws, start, uploads[start : start + size]) for start in range(0, len(uploads), size)
    )
    seal = partial(_seal, canonical.encode(bundle), draws)
    if workers == 1:
        yield from map(seal, batches)
        return
    with _pool(workers - 1) as pool:
        begun: Iterator[Callable[[], SealedBatch]] = (
            pool.submit(seal, batch).result if turn % workers else partial(seal, batch)
            for turn, batch in enumerate(batches)
        )  # of as many batches as there are workers, this process seals one: when it is asked for
        # Two a worker: one is sealed while another waits, so that none is idle while this process sends.
        ahead = deque(islice(begun, 2 * workers))
        while ahead:
            sealed = ahead.popleft()()
            ahead.extend(islice(begun, 1))
            yield sealed


def _batch_size(task: Task) -> int:
    """Return how many reports of a task travel together."""
    # Two shares, and about 256 bytes of what seals them, ids and framing.
    return max(1, min(_MAX_BATCH, _TARGET_BATCH_BYTES // (2 * task.share_length + 256)))


def workers_for(reports: int) -> int:
    """Return how many processes are worth starting for this many reports."""
    return max(1, min(os.cpu_count() or 1, reports // _REPORTS_PER_WORKER))


def _fake_features(records: SourceRecords, draws: Draws, index: int) -> NDArray[np.uint8]:
    """Draw a fake report's features, u8 (d,): each column alone, as frequent as in the population.

    Of what a browser can know (how frequent each bin is, which the origin can publish with the bin edges)
    this hides best. Uniform bytes stand out at every column; another person's features are not the browser's
    to send, and a copy of the sender's own features shows up as a duplicate. A helper that knows how columns
    are correlated may still distinguish fakes from real reports: fakes hide the number of real reports from
    the ad server, and only `feature_epsilon` protects the features themselves.
    """
    rows = below(len(records), records.features.shape[1], draws.stream(f"fake features {index}"))
    return np.asarray(records.features[rows, np.arange(records.features.shape[1])])


def _fake_keys(records: MeasuredRecords, draws: Draws, index: int) -> NDArray[np.uint32]:
    """Draw a fake report's keys, u32 (K,): each alone, as frequent as in the population."""
    rows = below(len(records.keys), records.keys.shape[1], draws.stream(f"fake keys {index}"))
    return np.asarray(records.keys[rows, np.arange(records.keys.shape[1])])


def _batch(records: SourceRecords, draws: Draws, start: int, uploads: Sequence[Upload]) -> _Batch:
    """Return the browsers' records of some uploads, with fake values in the place of each fake."""
    # A fake has row 0 in this copy for now; its own values are written over that below.
    known = records.take(np.array([upload.row or 0 for upload in uploads], np.intp))
    labels: list[float | None] = [*known.labels.tolist()]
    for place, upload in enumerate(uploads):
        if upload.row is None:
            labels[place] = None
            known.features[place] = _fake_features(records, draws, start + place)
            if known.measured is not None and records.measured is not None:
                known.measured.keys[place] = _fake_keys(records.measured, draws, start + place)
                known.measured.values[place] = 0
    return _Batch(
        start=start,
        at_s=[upload.at_s for upload in uploads],
        features=known.features,
        labels=labels,
        measured=known.measured,
    )


def _seal(bundle: bytes, draws: Draws, batch: _Batch) -> SealedBatch:
    """Split all reports, then seal all: see `Sealer.split`."""
    sealer = _sealer(bundle)
    sealer.check_fresh(time())  # of this machine: the simulated days say nothing of the helpers' keys
    sources = [draws.stream(f"report {batch.start + place}") for place in range(len(batch.at_s))]
    split = sealer.split(list(batch.examples()), batch.at_s, sources)
    return SealedBatch.of([sealer.seal(one) for one in split])


@lru_cache(maxsize=1)
def _sealer(bundle: bytes) -> Sealer:
    """Return the sealer of a bundle, built once per process: keys do not cross processes."""
    return Sealer(canonical.decode(TaskBundle, bundle), now=time())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that share nothing with this one.

    What is still queued is dropped when the caller stops early.
    """
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),  # gRPC's threads do not survive a fork
        initializer=gc_tuning.seldom,
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

"""Steps 2 and 3 for many browsers: turn uploads into sealed reports, in order, on as many cores as there are.

Every report draws its decoys, masks and id from a stream of its own, named by its place in the upload order,
so the result does not depend on how the work is spread. HPKE's ephemeral keys are the library's own:
ciphertexts differ from run to run, plaintexts do not.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from time import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from browser_sim.people import Upload
from browser_sim.sealed_batch import SealedBatch, sealed_batch
from browser_sim.source import MeasuredRecords, Records
from maskedlark import canonical
from maskedlark.frozen import frozen
from maskedlark.randomness import below
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import Sealer

_MAX_BATCH: Final = 256
_TARGET_BATCH_BYTES: Final = 1 << 20
_REPORTS_PER_WORKER: Final = 4_000
"""Starting a process costs about as much as sealing this many reports."""


@frozen
class _Upload:
    """A report to seal: picklable, and complete but for the task."""

    index: int
    at_s: float
    example: Example


def seal_all(
    bundle: TaskBundle, uploads: Sequence[Upload], records: Records, draws: Draws, *, workers: int
) -> Iterator[SealedBatch]:
    """Sealed reports in upload order, in batches of about a mebibyte.

    Args:
        bundle: The task, verified.
        uploads: What to report and when.
        records: The rows that uploads name.
        draws: One stream per report.
        workers: Processes; 1 seals in this one.

    Guarantees: with a seed, the same report ids, time buckets and plaintexts for any number of workers. At
        most two batches per worker are in memory at once.

    Raises:
        InvalidTask: a record does not fit the task.
    """
    size = batch_size(bundle.task)
    prepared = (
        _Upload(index=index, at_s=upload.at_s, example=_example(records, draws, index, upload.row))
        for index, upload in enumerate(uploads)
    )
    batches = iter(lambda: list(islice(prepared, size)), [])
    encoded = canonical.encode(bundle)
    if workers == 1:
        for batch in batches:
            yield _seal(encoded, draws, batch)
        return
    with _pool(workers) as pool:
        pending: deque[Future[SealedBatch]] = deque(
            pool.submit(_seal, encoded, draws, batch) for batch in islice(batches, 2 * workers)
        )
        while pending:
            sealed = pending.popleft().result()
            pending.extend(pool.submit(_seal, encoded, draws, batch) for batch in islice(batches, 1))
            yield sealed


def batch_size(task: Task) -> int:
    """How many reports of a task travel together."""
    return max(1, min(_MAX_BATCH, _TARGET_BATCH_BYTES // (2 * task.share_length + 256)))


def workers_for(reports: int) -> int:
    """How many processes are worth starting for this many reports."""
    return max(1, min(os.cpu_count() or 1, reports // _REPORTS_PER_WORKER))


def fake_features(records: Records, draws: Draws, index: int) -> NDArray[np.uint8]:
    """The features of a fake report, u8 (d,): every column on its own, as frequent as in the population.

    Of what a browser can know (how frequent each bin is, which the origin can publish with the bin edges)
    this hides best. Uniform bytes stand out at every column; another person's features are not the browser's
    to send, and a copy of its own shows up as a duplicate. A helper that knows how columns hang together may
    still tell fakes from real reports: fakes hide the number of real reports from the ad server, and only
    `feature_epsilon` protects the features themselves.
    """
    rows = below(len(records), records.features.shape[1], draws.stream(f"fake features {index}"))
    return np.asarray(records.features[rows, np.arange(records.features.shape[1])])


def fake_keys(records: MeasuredRecords, draws: Draws, index: int) -> NDArray[np.uint32]:
    """The keys of a fake report, u32 (K,): each on its own, as frequent as in the population."""
    rows = below(len(records.keys), records.keys.shape[1], draws.stream(f"fake keys {index}"))
    return np.asarray(records.keys[rows, np.arange(records.keys.shape[1])])


def _example(records: Records, draws: Draws, index: int, row: int | None) -> Example:
    """What the browser of an upload knows: a record, or a fake, whose values count as zeros."""
    is_fake, held, measured = row is None, records.measured, None
    if held is not None:
        keys = fake_keys(held, draws, index) if is_fake else held.keys[row]
        values = [0] * held.values.shape[1] if is_fake else held.values[row].tolist()
        measured = MeasuredValues(keys=tuple(keys.tolist()), values=tuple(values))
    return Example(
        features=fake_features(records, draws, index) if is_fake else records.features[row],
        label=None if is_fake else float(records.labels[row]),
        measured=measured,
    )


def _seal(bundle: bytes, draws: Draws, batch: Sequence[_Upload]) -> SealedBatch:
    sealer = _sealer(bundle)
    sealer.check_fresh(time())  # of this machine: the simulated days say nothing of the helpers' keys
    return sealed_batch(
        [
            sealer.report(one.example, unix_s=one.at_s, randomness=draws.stream(f"report {one.index}"))
            for one in batch
        ]
    )


@lru_cache(maxsize=1)
def _sealer(bundle: bytes) -> Sealer:
    """The sealer of a bundle, built once per process: keys do not travel between processes."""
    return Sealer(canonical.decode(TaskBundle, bundle), now=time())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that share nothing with this one.

    What is still queued is dropped when the caller stops early.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn")
    )  # gRPC's threads do not survive a fork
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

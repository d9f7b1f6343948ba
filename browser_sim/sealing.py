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
from dataclasses import field
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
class _Batch:
    """Reports to seal together: picklable, and complete but for the task.

    Shapes: features u8 (n, d); labels float64 (n,), NaN for a fake report; at_s float64 (n,); measured n
        rows.
    """

    first_index: int
    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.float64] = field(repr=False)
    at_s: NDArray[np.float64]
    measured: MeasuredRecords | None


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
    batches = (
        _batch(uploads[start : start + size], start, records, draws) for start in range(0, len(uploads), size)
    )
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


def fake_measured(records: MeasuredRecords, draws: Draws, index: int) -> MeasuredRecords:
    """The keys of a fake report, one row: each on its own, as frequent as in the population.

    Its values count as zeros.
    """
    rows = below(len(records.keys), records.keys.shape[1], draws.stream(f"fake keys {index}"))
    keys = records.keys[rows, np.arange(records.keys.shape[1])]
    return MeasuredRecords(keys=keys[None, :], values=np.zeros((1, records.values.shape[1]), np.int64))


def _measured(
    uploads: Sequence[Upload], first_index: int, records: Records, draws: Draws
) -> MeasuredRecords | None:
    """The measured rows of some uploads."""
    all_of_them = records.measured
    if all_of_them is None:
        return None
    rows = [
        fake_measured(all_of_them, draws, first_index + place)
        if upload.row is None
        else MeasuredRecords(keys=all_of_them.keys[[upload.row]], values=all_of_them.values[[upload.row]])
        for place, upload in enumerate(uploads)
    ]
    return MeasuredRecords(
        keys=np.concatenate([row.keys for row in rows]), values=np.concatenate([row.values for row in rows])
    )


def _batch(uploads: Sequence[Upload], first_index: int, records: Records, draws: Draws) -> _Batch:
    features = [
        fake_features(records, draws, first_index + place)
        if upload.row is None
        else records.features[upload.row]
        for place, upload in enumerate(uploads)
    ]
    return _Batch(
        first_index=first_index,
        features=np.stack(features),
        labels=np.array([np.nan if upload.row is None else records.labels[upload.row] for upload in uploads]),
        at_s=np.array([upload.at_s for upload in uploads]),
        measured=_measured(uploads, first_index, records, draws),
    )


def _seal(bundle: bytes, draws: Draws, batch: _Batch) -> SealedBatch:
    sealer = _sealer(bundle)
    sealer.check_fresh(time())  # of this machine: the simulated days say nothing of the helpers' keys
    labels = [None if np.isnan(label) else float(label) for label in batch.labels]
    return sealed_batch(
        [
            sealer.report(
                Example(features=features, label=label, measured=_of_row(batch.measured, place)),
                unix_s=at_s,
                randomness=draws.stream(f"report {batch.first_index + place}"),
            )
            for place, (features, label, at_s) in enumerate(
                zip(batch.features, labels, batch.at_s.tolist(), strict=True)
            )
        ]
    )


def _of_row(measured: MeasuredRecords | None, place: int) -> MeasuredValues | None:
    if measured is None:
        return None
    return MeasuredValues(
        keys=tuple(measured.keys[place].tolist()), values=tuple(measured.values[place].tolist())
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

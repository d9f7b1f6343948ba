"""The opening of report shares as work for workers (`dispatch`): whole chunks to each.

    work = OpeningWork.of(opener, shares)
    about = work.order([0], is_sent=False)               # the head: the keys, and the shares as they came
    order = read_order(about.kind, about.parts)          # the worker
    answer = write_opened(order.opener.open_columns(order.shares))
    work.take([0], read(Done, answer).parts)             # the head, which checks what can be checked

A chunk is not divided among workers, except into orders of at most `MAX_CHUNK` shares: an order of few shares
takes the head not much less than one of a thousand, and many workers would wait for it. Each has chunks of
its own instead, which callers bring at the same time (`Executor.opens_at_once`). The length of an answer
follows from the number of its shares and their task.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from helper.datasets.proofs import fast_residues
from helper.datasets.segments import RowShape, SegmentRows
from helper.executors.dispatch import PartsToSend
from helper.executors.orders import Done, Opening, OpeningSecret, bits, flags, write
from helper.executors.processes import MAX_CHUNK
from maskedlark import canonical
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS
from maskedlark.reports.dataset import (
    AdmittedSet,
    PreparedShares,
    ShareColumns,
    ShareForHelper,
    ShareOpener,
    with_zeros_for_ids,
)
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES, ViewKey
from maskedlark.reports.input_shares import wrong_views
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES, Task

_REASONS: Final = tuple(ReportReason)


@frozen
class _OpeningOrder:
    """An order as a worker reads it."""

    opener: ShareOpener
    shares: ShareColumns


@frozen(eq=False)
class OpeningWork:
    """Shares in parts, and what was found in them, by the numbers of the parts."""

    opener: ShareOpener
    parts: Sequence[Sequence[ShareForHelper]]
    opened: dict[int, PreparedShares]
    names: None = None
    at_once: int = 2

    @classmethod
    def of(cls, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> Self:
        """Divide shares into orders of about equal size."""
        parts = -(-len(incoming) // MAX_CHUNK)
        size = -(-len(incoming) // parts)
        divided = [incoming[start : start + size] for start in range(0, len(incoming), size)]
        return cls(opener=opener, parts=divided, opened={})

    @property
    def count(self) -> int:
        """See `Work`."""
        return len(self.parts)

    def order(self, parts: Sequence[int], *, is_sent: bool) -> PartsToSend:
        """See `Work`."""
        del is_sent
        (part,) = parts
        kind, encoded = _write_order(self.opener, self.parts[part])
        most_bytes = _longest_answer(self.opener.task, len(self.parts[part]))
        return PartsToSend(kind=kind, parts=encoded, answer_bytes=most_bytes)

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        (part,) = parts
        self.opened[part] = _read_opened(answer, self.opener, self.parts[part])

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`; no frames are sent."""


def _write_order(opener: ShareOpener, shares: Sequence[ShareForHelper]) -> tuple[Opening, Sequence[bytes]]:
    """Return what a worker needs to open these shares: the order's work and parts."""
    opening = Opening(
        role=opener.role,
        keys=tuple(
            OpeningSecret(key_id=key.key_id, suite=key.suite, secret=key.secret_bytes())
            for key in opener.opening_keys
        ),
        view_key=opener.view_key.secret_bytes(),
    )
    columns = ShareColumns.of(shares)
    numbers = np.array([columns.time_buckets, columns.key_ids], "<u8").T
    ids, ciphertexts = _strings(columns.report_ids), _strings(columns.ciphertexts)
    return opening, (canonical.encode(opener.task), numbers.tobytes(), *ids, *ciphertexts)


def read_order(opening: Opening, parts: Sequence[bytes]) -> _OpeningOrder:
    """Read an order, with an opener for it alone: workers do not keep keys after it.

    Raises:
        InvalidTask, ValueError: the parts are not those of `_write_order`.
    """
    encoded_task, numbers, *strings = parts
    time_buckets, key_ids = np.frombuffer(numbers, "<u8").reshape(-1, 2).T.tolist()
    task = canonical.decode(Task, encoded_task)
    return _OpeningOrder(
        opener=ShareOpener(
            task=task,
            role=opening.role,
            opening_keys=[
                OpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret) for key in opening.keys
            ],
            view_key=ViewKey(opening.view_key),
            residues_of=fast_residues if task.proof else residues,
        ),
        shares=ShareColumns(
            report_ids=_split(*strings[:2]),
            time_buckets=time_buckets,
            key_ids=key_ids,
            ciphertexts=_split(*strings[2:]),
        ),
    )


def write_opened(prepared: PreparedShares) -> bytes:
    """Write a worker's answer, of equal length for all shares of a task, whatever they hold."""
    admitted = prepared.admitted
    columns = SegmentRows(report_ids=prepared.report_ids, shares=prepared.shares).columns[1:]
    dropped = np.array([admitted.dropped[reason] for reason in _REASONS], "<u8")
    parts: list[NDArray[Any]] = [dropped, admitted.view_tags, *columns]
    return write(
        Done(done=(0,)),
        (bits(admitted.is_admitted), *(np.ascontiguousarray(part).tobytes() for part in parts)),
    )


def _read_opened(
    parts: Sequence[bytes], opener: ShareOpener, shares: Sequence[ShareForHelper]
) -> PreparedShares:
    """Read the parts of a worker's answer, in the form that `opener.open(shares)` gives.

    The worker is believed what it read. Its answer must be of all shares, in shape, with canonical masks,
    with labels and keys of the task, and admit nothing whose id is malformed.

    Raises:
        InvalidTask: it is not.
    """
    count = len(shares)
    rows = _shape(opener.task).empty(count)
    if len(parts) != 3 + len(rows.columns) - 1:
        raise InvalidTask("an answer is not of the shares that were sent")
    is_admitted = flags(parts[0], count)
    dropped = _fill(np.empty(len(_REASONS), np.uint64), parts[1])
    view_tags = _fill(np.empty((count, VIEW_TAG_BYTES), np.uint8), parts[2])
    ids = ShareColumns.of(shares).report_ids
    has_id = np.array(list(map(len, ids))) == REPORT_ID_BYTES
    _fill(rows.report_ids, b"".join(ids if has_id.all() else with_zeros_for_ids(ids)))
    for column, part in zip(rows.columns[1:], parts[3:], strict=True):
        _fill(column, part)
    labels, measured = rows.shares.labels[is_admitted], rows.shares.measured
    keys = np.empty((len(labels), 0), np.uint32) if measured is None else measured.keys[is_admitted]
    elements = [column[is_admitted] for column in rows.columns if column.dtype == np.uint64]
    if (
        sum(dropped.tolist()) != count - int(is_admitted.sum())
        or (is_admitted & ~has_id).any()
        or view_tags[~is_admitted].any()
        or any((column >= np.uint64(MODULUS)).any() for column in elements)
        or any(is_wrong.any() for _, is_wrong in wrong_views(opener.task, labels, keys))
    ):
        raise InvalidTask("an answer is not what opening shares gives")
    return PreparedShares(
        report_ids=rows.report_ids,
        shares=rows.shares,
        admitted=AdmittedSet(
            is_admitted=is_admitted,
            view_tags=view_tags,
            dropped=Counter(
                {reason: number for reason, number in zip(_REASONS, dropped.tolist(), strict=True) if number}
            ),
        ),
    )


def _longest_answer(task: Task, shares: int) -> int:
    """Return the length of the parts of an answer, or more."""
    return shares * (1 + VIEW_TAG_BYTES + sum(_shape(task).widths)) + 8 * len(_REASONS)


def _shape(task: Task) -> RowShape:
    """Return the shape of what is read of the task's reports."""
    measurement = task.measurement
    return RowShape(
        features=task.num_features,
        candidates=task.num_candidates,
        keys=len(measurement.keys) if measurement else 0,
        columns=measurement.num_columns if measurement else 0,
    )


def _strings(strings: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Encode byte strings as their lengths, and their concatenation."""
    return np.array(list(map(len, strings)), "<u4").tobytes(), b"".join(strings)


def _split(lengths: bytes, together: bytes) -> list[bytes]:
    """Split what `_strings` gave."""
    ends = np.cumsum(np.frombuffer(lengths, "<u4"), dtype=np.int64).tolist()
    return [together[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _fill(column: NDArray[Any], part: bytes) -> NDArray[Any]:
    """Fill a column with the little-endian numbers of a part.

    Raises:
        InvalidTask: there are not as many.
    """
    if len(part) != column.nbytes:
        raise InvalidTask("a column of an answer is of another length than its shares")
    if column.size:
        column[...] = np.frombuffer(part, column.dtype.newbyteorder("<")).reshape(column.shape)
    return column

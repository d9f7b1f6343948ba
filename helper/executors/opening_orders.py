"""What the head orders of a worker that opens shares, and what it gets back. They only travel sealed.

    order = write_order(opener, shares)                  # the head: the keys, and the shares as they came
    asked = read_order(order)                            # the worker
    answer = write_opened(asked.opener.open_columns(asked.shares))
    prepared = read_opened(answer, opener, shares)       # the head, which checks what can be checked

An order holds all that it takes to open its shares, so any worker can do it, and do it again. How long an
answer is follows from the number of its shares and their task.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from helper.datasets.proofs import fast_residues
from helper.datasets.segments import RowShape, SegmentRows
from helper.executors.orders import Count, Message, bits, flags, read, write
from maskedlark import canonical
from maskedlark.canonical import Bytes32
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
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import wrong_views
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES, Task

_REASONS: Final = tuple(ReportReason)


@canonical.canonical
class _Key:
    """A private HPKE key."""

    key_id: Annotated[int, Field(ge=0, le=255)]
    suite: HpkeSuite
    secret: Annotated[bytes, Field(max_length=256)] = Field(repr=False)


@canonical.canonical
class _Opening:
    """How to open the shares of a task; the task and the shares follow."""

    role: Annotated[int, Field(ge=0, le=1)]
    keys: tuple[_Key, ...]
    view_key: Bytes32 = Field(repr=False)


@canonical.canonical
class _Opened:
    """Of how many shares the rows are that follow."""

    shares: Count


@frozen
class OpeningOrder:
    """An order as a worker reads it."""

    opener: ShareOpener
    shares: ShareColumns


def write_order(opener: ShareOpener, shares: Sequence[ShareForHelper]) -> bytes:
    """Write what a worker needs to open these shares."""
    keys = tuple(
        _Key(key_id=key.key_id, suite=key.suite, secret=key.secret_bytes()) for key in opener.opening_keys
    )
    head = _Opening(role=opener.role, keys=keys, view_key=opener.view_key.secret_bytes())
    columns = ShareColumns.of(shares)
    numbers = np.array([columns.time_buckets, columns.key_ids], "<u8").T
    ids, ciphertexts = _strings(columns.report_ids), _strings(columns.ciphertexts)
    return write(head, (canonical.encode(opener.task), numbers.tobytes(), *ids, *ciphertexts))


def read_order(encoded: bytes) -> OpeningOrder:
    """Read an order with an opener of its own, as workers do not keep keys that end.

    Raises:
        InvalidTask, ValueError: it is none.
    """
    message = read(_Opening, encoded)
    settings: _Opening = message.head
    encoded_task, numbers, *strings = message.parts
    time_buckets, key_ids = np.frombuffer(numbers, "<u8").reshape(-1, 2).T.tolist()
    task = canonical.decode(Task, encoded_task)
    return OpeningOrder(
        opener=ShareOpener(
            task=task,
            role=settings.role,
            opening_keys=[
                OpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret) for key in settings.keys
            ],
            view_key=ViewKey(settings.view_key),
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
        _Opened(shares=len(prepared.report_ids)),
        (bits(admitted.is_admitted), *(np.ascontiguousarray(part).tobytes() for part in parts)),
    )


def read_opened(encoded: bytes, opener: ShareOpener, shares: Sequence[ShareForHelper]) -> PreparedShares:
    """Read a worker's answer, in the form that `opener.open(shares)` gives.

    The worker is believed what it read. Its answer must be of all shares, in shape, with canonical masks,
    with labels and keys of the task, and admit nothing whose id is none.

    Raises:
        InvalidTask: it is not.
    """
    message: Message = read(_Opened, encoded)
    count = len(shares)
    rows = _shape(opener.task).empty(count)
    if message.head.shares != count or len(message.parts) != 3 + len(rows.columns) - 1:
        raise InvalidTask("an answer is not of the shares that were sent")
    is_admitted = flags(message.parts[0], count)
    dropped = _fill(np.empty(len(_REASONS), np.uint64), message.parts[1])
    view_tags = _fill(np.empty((count, VIEW_TAG_BYTES), np.uint8), message.parts[2])
    ids = ShareColumns.of(shares).report_ids
    has_id = np.array(list(map(len, ids))) == REPORT_ID_BYTES
    _fill(rows.report_ids, b"".join(ids if has_id.all() else with_zeros_for_ids(ids)))
    for column, part in zip(rows.columns[1:], message.parts[3:], strict=True):
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

"""Sealing of a federated round: open the devices' shares as they come, and keep the chosen ones.

    with updates.prepare(task_id, handle, encoded_round, caller) as preparation:
        preparation.add(shares)                       # for each chunk: what is admitted
        totals = preparation.finish()
    updates.commit(task_id, handle, bits, dataset_id, caller)

It is the way of `helper.datasets.datasets`, but for where shares lie: each goes to an encrypted file as soon
as it is opened, and a preparation keeps ids and tags only. What an ad server prepares at a time is bounded by
the number of its preparations and by the floors on a task's dataset.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from threading import Lock
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from helper.datasets.datasets import HANDLE_BYTES, chosen_rows
from helper.datasets.preparing import MAX_CHUNK_BYTES, PreparedTotals
from helper.datasets.records import Updates
from helper.datasets.segments import Ids
from helper.datasets.shelves import Handle
from helper.datasets.update_vault import SealedUpdates, Spool, StoredUpdate, UpdateVault
from helper.datasets.vault import VaultDamaged, damage_told
from helper.ledger.ledger import Ledger
from helper.ledger.records import StoredDataset
from helper.trust.tasks import Caller, ServedTask, Tasks
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.releases.update import check_round, form_of
from maskedlark.releases.update_job import UpdateRound
from maskedlark.reports.dataset import AdmittedSet, ShareForHelper, canonical_order, dataset_id
from maskedlark.reports.pair import VIEW_TAG_BYTES
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.reports.update_sealing import UpdateOpener
from maskedlark.rpc.trust import host_of
from maskedlark.runtime.turns import Turns

MAX_PREPARED_PER_TASK: Final = 2
MAX_PREPARED: Final = 16

_LOG: Final = logging.getLogger(__name__)


@frozen
class PreparedUpdates:
    """A finished preparation.

    Attributes:
        round: What the shares answer.
        spool: The admitted shares, in order.
        report_ids: u8 (n, 16), of all that came, in order.
        view_tags: u8 (n, 16), zeros where not admitted.
        is_admitted: bool (n,).
    """

    round: UpdateRound
    spool: Spool = field(repr=False)
    report_ids: NDArray[np.uint8] = field(repr=False)
    view_tags: NDArray[np.uint8] = field(repr=False)
    is_admitted: NDArray[np.bool_]


@frozen
class UpdateDatasets:
    """The datasets of updates of one helper. Safe to call from many threads."""

    tasks: Tasks
    opening_keys: Callable[[], Sequence[OpeningKey]]
    ledger: Ledger
    vault: UpdateVault
    storing: Turns = field(default_factory=Turns)
    """By dataset id: what is being committed is not swept."""
    _lock: Lock = field(default_factory=Lock, init=False)
    _prepared: OrderedDict[Handle, PreparedUpdates] = field(default_factory=OrderedDict, init=False)
    _committing: Turns = field(default_factory=Turns, init=False)

    def prepare(
        self, task_id: bytes, handle: bytes, encoded_round: bytes, caller: Caller
    ) -> "UpdatePreparation":
        """Begin to open a round's shares, in a `with` block.

        Called by the ad server; the same handle begins anew.

        Raises:
            InvalidTask: the round is not canonical.
            JobRefused(MALFORMED, UNDECLARED, ROUND_BEYOND_PLAN, NOISE_OUT_OF_RANGE, OVERFLOW): it is no round
            of the
                task; and the reasons of `Tasks.served`.
        """
        served = self.tasks.served(task_id, caller)
        if len(handle) != HANDLE_BYTES:
            raise JobRefused(JobReason.MALFORMED, f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        one = decode(UpdateRound, encoded_round)
        check_round(served.task, one, records=served.task.max_dataset_size)
        payload_bytes = form_of(served.task).payload_bytes(served.role)
        return UpdatePreparation(
            served=served,
            round=one,
            opener=UpdateOpener(
                task=served.task,
                role=served.role,
                round_id=one.round_id,
                opening_keys=self.opening_keys(),
                view_key=served.pair.view_key,
            ),
            ledger=self.ledger,
            spool=self.vault.begin(one.round_id, payload_bytes),
            keep=lambda prepared: self._keep(_handle(served, handle), prepared),
        )

    def commit(self, task_id: bytes, handle: bytes, chosen: bytes, expected_id: bytes, caller: Caller) -> int:
        """Make the chosen shares of a preparation a dataset.

        Called by the ad server; idempotent for the same one.

        Returns:
            The dataset's size.

        Guarantees: as of `Datasets.commit`.

        Raises:
            JobRefused(UNKNOWN_DATASET, MALFORMED, DATASET_EMPTY, DATASET_CHANGED, REPORT_ALREADY_USED)
        """
        served = self.tasks.served(task_id, caller)
        with self._committing.alone(task_id):
            known = self._committed(expected_id, task_id)
            if known is not None:
                return known.size
            key = _handle(served, handle)
            with self._lock:
                prepared = self._prepared.get(key)
            if prepared is None or prepared.spool.is_lost:
                raise JobRefused(
                    JobReason.UNKNOWN_DATASET,
                    "nothing is prepared under this handle (any more): prepare it again",
                )
            rows = chosen_rows(prepared.is_admitted, chosen)
            with self.storing.alone(expected_id):
                size = self._store(task_id, prepared, rows, expected_id)
            with self._lock:
                self._prepared.pop(key, None)
        _LOG.info("dataset of updates committed: %d devices", size)
        return size

    def records(self, one: UpdateRound, of_dataset: bytes) -> Updates:
        """The shares of a committed dataset of a round, for an executor.

        Reading them raises JobRefused(DATASET_LOST) if they are missing, damaged, or of another round, and
        HelperUnavailable if they cannot be read at the moment.
        """
        return Updates(
            shares=partial(self.shares, one, of_dataset),
            sealed=partial(self._sealed, one, of_dataset),
        )

    def shares(self, one: UpdateRound, of_dataset: bytes) -> Iterator[StoredUpdate]:
        """The shares of a committed dataset of a round, one at a time; raises as `records` says."""
        with _loss_told():
            yield from self.vault.shares(of_dataset, one.round_id)

    def _sealed(self, one: UpdateRound, of_dataset: bytes, most_shares: int) -> list[SealedUpdates]:
        with _loss_told():
            parts = self.vault.sealed(of_dataset, one.round_id, most_shares)
        return [replace(one, read=partial(_read, one.read)) for one in parts]

    def _store(
        self, task_id: bytes, prepared: PreparedUpdates, rows: NDArray[np.bool_], expected_id: bytes
    ) -> int:
        """First the file, then the ledger, as `Datasets` does."""
        ids, tags = prepared.report_ids[rows], prepared.view_tags[rows]
        order = canonical_order(ids)
        if dataset_id(task_id, ids[order], tags[order]) != expected_id:
            raise JobRefused(
                JobReason.DATASET_CHANGED, "the chosen reports make another dataset id than the expected one"
            )
        self.vault.commit(prepared.spool, expected_id, rows[prepared.is_admitted])
        try:
            self.ledger.add_dataset(expected_id, task_id, Ids(ids[order]))
        except JobRefused:
            if self._committed(expected_id, task_id) is None:
                self.vault.remove_file(expected_id)
                raise
        return len(ids)

    def _committed(self, of_dataset: bytes, task_id: bytes) -> StoredDataset | None:
        known = self.ledger.dataset(of_dataset)
        return known if known is not None and known.task_id == task_id else None

    def _keep(self, key: Handle, prepared: PreparedUpdates) -> None:
        """Keep a finished preparation; past the bounds on their number the oldest are forgotten."""
        with self._lock:
            self._forget(key)
            self._prepared[key] = prepared
            of_task = [known for known in self._prepared if known.task_id == key.task_id]
            of_owner = [known for known in self._prepared if known.owner == key.owner]
            for known in {*of_task[:-MAX_PREPARED_PER_TASK], *of_owner[:-MAX_PREPARED]}:
                self._forget(known)

    def _forget(self, key: Handle) -> None:
        """Under the lock."""
        prepared = self._prepared.pop(key, None)
        if prepared is not None:
            prepared.spool.remove()


class UpdatePreparation:
    """One stream of chunks of a round.

    Used by one thread, in a `with` block, at whose end an unfinished file goes.
    """

    def __init__(
        self,
        *,
        served: ServedTask,
        round: UpdateRound,  # noqa: A002 # the protocol's word
        opener: UpdateOpener,
        ledger: Ledger,
        spool: Spool,
        keep: Callable[[PreparedUpdates], None],
    ) -> None:
        self._task = served.task
        self._task_id = served.task_id
        self._round = round
        self._opener = opener
        self._ledger = ledger
        self._spool = spool
        self._keep = keep
        self._seen: set[bytes] = set()
        self._chunks: list[AdmittedSet] = []
        self._ids: list[bytes] = []
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            self._spool.remove()

    def add(self, incoming: Sequence[ShareForHelper]) -> AdmittedSet:
        """Open one chunk, and drop what is wrong, each with its reason.

        Raises:
            JobRefused(DATASET_TOO_LARGE, TOO_LARGE): more reports than the task allows, or than fit into one
            chunk.
        """
        if len(self._ids) + len(incoming) > self._task.max_dataset_size:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"a round of this task has at most {self._task.max_dataset_size} reports",
            )
        if sum(len(item.share.ciphertext) for item in incoming) > MAX_CHUNK_BYTES:
            raise JobRefused(JobReason.TOO_LARGE, f"a chunk of shares has at most {MAX_CHUNK_BYTES} bytes")
        used = self._ledger.used_among(self._task_id, [item.report_id for item in incoming])
        tags = np.zeros((len(incoming), VIEW_TAG_BYTES), np.uint8)
        is_admitted = np.zeros(len(incoming), np.bool_)
        dropped: Counter[ReportReason] = Counter()
        for row, item in enumerate(incoming):
            try:
                tags[row] = np.frombuffer(self._opened(item, used), np.uint8)
                is_admitted[row] = True
            except ReportRejected as rejection:
                dropped[rejection.reason] += 1
            self._ids.append(
                item.report_id if len(item.report_id) == REPORT_ID_BYTES else bytes(REPORT_ID_BYTES)
            )
        admitted = AdmittedSet(is_admitted=is_admitted, view_tags=tags, dropped=dropped)
        if incoming:  # or empty chunks would pile up
            self._chunks.append(admitted)
        return admitted

    def finish(self) -> PreparedTotals:
        """Keep what was opened under the handle, for the commit. Called once, after the last chunk."""
        self._spool.finish()
        ids = np.frombuffer(b"".join(self._ids), np.uint8).reshape(-1, REPORT_ID_BYTES)
        tags = np.concatenate(
            [np.empty((0, VIEW_TAG_BYTES), np.uint8), *(one.view_tags for one in self._chunks)]
        )
        is_admitted = np.concatenate([np.empty(0, np.bool_), *(one.is_admitted for one in self._chunks)])
        prepared = PreparedUpdates(
            round=self._round, spool=self._spool, report_ids=ids, view_tags=tags, is_admitted=is_admitted
        )
        self._is_finished = True  # the file is the shelf's now
        self._keep(prepared)
        order = canonical_order(ids[is_admitted])
        return PreparedTotals(
            received=len(ids),
            admitted=int(is_admitted.sum()),
            admitted_digest=dataset_id(self._task_id, ids[is_admitted][order], tags[is_admitted][order]),
            dropped=sum((one.dropped for one in self._chunks), Counter()),
        )

    def _opened(self, item: ShareForHelper, used: set[bytes]) -> bytes:
        """Open one share and write it down; its view tag."""
        opened = self._opener.open(item.report_id, item.time_bucket, item.share)
        if item.report_id in self._seen:
            raise ReportRejected(ReportReason.DUPLICATE_ID, "the report came before")
        if item.report_id in used:
            raise ReportRejected(ReportReason.ALREADY_USED, "the report is in another dataset")
        self._seen.add(item.report_id)
        self._spool.add(item.report_id, opened.payload)
        return opened.view_tag


@contextmanager
def _loss_told() -> Iterator[None]:
    try:
        yield
    except VaultDamaged as error:
        _LOG.error("%s", error)
        raise JobRefused(
            JobReason.DATASET_LOST,
            "this helper's shares of the dataset are lost, damaged, or of another round",
        ) from None


def _read(read: Callable[[], bytes]) -> bytes:
    """The sealed shares of a part."""
    with _loss_told(), damage_told():
        return read()


def _handle(served: ServedTask, name: bytes) -> Handle:
    return Handle(owner=host_of(served.task.origin), task_id=served.task_id, name=name)

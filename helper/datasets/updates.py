"""Sealing of a federated round: open the devices' shares as they come, and keep the chosen ones.

    with updates.prepare(task_id, handle, encoded_round, caller) as preparation:
        preparation.add(shares)                       # for each chunk: what is admitted
        totals = preparation.finish()
    updates.commit(task_id, handle, bits, dataset_id, caller)

It is the way of `helper.datasets.datasets`, but for where shares lie: each goes to an encrypted file as soon
as it is opened, and a preparation keeps ids and tags only. Both kinds share one room in memory
(`helper.datasets.preparation_cache`) and one quota of each ad server (`helper.datasets.storage_quota`).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Final

import numpy as np

from helper.datasets.datasets import HANDLE_BYTES, check_expected, chosen_rows, loss_told, read_told
from helper.datasets.preparation_cache import Handle, PreparationCache
from helper.datasets.records import Updates
from helper.datasets.segments import Ids
from helper.datasets.update_preparing import PreparedUpdates, UpdatePreparation
from helper.datasets.update_vault import SealedUpdates, StoredUpdate, UpdateVault
from helper.ledger.ledger import Ledger
from helper.ledger.records import StoredDataset
from helper.trust.tasks import Caller, ServedTask, Tasks
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.releases.update import check_round, form_of
from maskedlark.releases.update_job import UpdateRound
from maskedlark.reports.dataset import canonical_order, dataset_id
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.update_sealing import UpdateOpener
from maskedlark.rpc.trust import host_of
from maskedlark.runtime.keyed_lock import KeyedLock

_LOST: Final = "lost, damaged, or of another round"
_LOG: Final = logging.getLogger(__name__)


@frozen
class UpdateDatasets:
    """The datasets of updates of one helper. Safe to call from many threads."""

    tasks: Tasks
    opening_keys: Callable[[], Sequence[OpeningKey]]
    ledger: Ledger
    vault: UpdateVault
    prepared: PreparationCache
    storing: KeyedLock = field(default_factory=KeyedLock)
    """By dataset id: what is being committed is not swept."""
    _committing: KeyedLock = field(default_factory=KeyedLock, init=False)

    def prepare(
        self, task_id: bytes, handle: bytes, encoded_round: bytes, caller: Caller
    ) -> UpdatePreparation:
        """Begin to open a round's shares, in a `with` block.

        Called by the ad server; the same handle begins anew.

        Raises:
            InvalidTask: the round is not canonical.
            JobRefused(MALFORMED, UNDECLARED, ROUND_BEYOND_PLAN, NOISE_OUT_OF_RANGE, OVERFLOW): it is no round
                of the task; and the reasons of `Tasks.serve`.
            JobRefused(QUOTA_EXCEEDED): the ad server holds as much at this helper as its operator allows.
        """
        served = self.tasks.serve(task_id, caller)
        if len(handle) != HANDLE_BYTES:
            raise JobRefused(JobReason.MALFORMED, f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        one = decode(UpdateRound, encoded_round)
        check_round(served.task, one, records=served.task.max_dataset_size)
        payload_bytes = form_of(served.task).payload_bytes(served.role)
        key = _handle(served, handle)
        return UpdatePreparation(
            served=served,
            opener=UpdateOpener(
                task=served.task,
                role=served.role,
                round_id=one.round_id,
                opening_keys=self.opening_keys(),
                view_key=served.pair.view_key,
            ),
            ledger=self.ledger,
            spool=self.vault.begin(one.round_id, payload_bytes, key.owner),
            handle=key,
            shelf=self.prepared,
            payload_bytes=payload_bytes,
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
        served = self.tasks.serve(task_id, caller)
        with self._committing.hold(task_id):
            known = self._find_committed(expected_id, task_id)
            if known is not None:
                return known.size
            key = _handle(served, handle)
            with self.prepared.lent(key, PreparedUpdates) as prepared:
                if prepared is None or not self.vault.takes(prepared.spool, expected_id):
                    raise JobRefused(
                        JobReason.UNKNOWN_DATASET,
                        "nothing is prepared under this handle (any more): prepare it again",
                    )
                is_chosen = chosen_rows(prepared.is_admitted, chosen)
                ids, tags = prepared.report_ids, prepared.view_tags
                order = canonical_order(ids, np.flatnonzero(is_chosen))
                # before anything is locked by the id: until then it may be another task's
                check_expected(expected_id, dataset_id(task_id, ids, tags, rows=order))
                with self.storing.hold(expected_id):
                    self.vault.commit(prepared.spool, expected_id, is_chosen[prepared.is_admitted])
                    self._add(task_id, expected_id, Ids(ids[order]))
                size = len(order)
            self.prepared.drop(key)
        _LOG.info("dataset of updates committed: %d devices", size)
        return size

    def records(self, one: UpdateRound, of_dataset: bytes) -> Updates:
        """Return the shares of a committed dataset of a round, for an executor.

        Reading them raises JobRefused(DATASET_LOST) if they are missing, damaged, or of another round, and
        HelperUnavailable if they cannot be read at the moment.
        """
        return Updates(
            shares=partial(self.shares, one, of_dataset),
            sealed=partial(self._iterate_sealed, one, of_dataset),
        )

    def shares(self, one: UpdateRound, of_dataset: bytes) -> Iterator[StoredUpdate]:
        """Yield the shares of a committed dataset of a round; raises as `records` says."""
        with loss_told(_LOST):
            yield from self.vault.shares(of_dataset, one.round_id)

    def _iterate_sealed(self, one: UpdateRound, of_dataset: bytes, most_shares: int) -> list[SealedUpdates]:
        with loss_told(_LOST):
            parts = self.vault.sealed(of_dataset, one.round_id, most_shares)
        return [replace(one, read=partial(read_told, one.read)) for one in parts]

    def _add(self, task_id: bytes, expected_id: bytes, report_ids: Ids) -> None:
        """Commit what lies in the file of a dataset, as `Datasets` does."""
        try:
            self.ledger.add_dataset(expected_id, task_id, report_ids)
        except JobRefused:
            if self._find_committed(expected_id, task_id) is None:
                self.vault.remove_file(expected_id)
                raise

    def _find_committed(self, of_dataset: bytes, task_id: bytes) -> StoredDataset | None:
        return self.ledger.dataset(task_id, of_dataset)


def _handle(served: ServedTask, name: bytes) -> Handle:
    return Handle(owner=host_of(served.task.origin), task_id=served.task_id, name=name)

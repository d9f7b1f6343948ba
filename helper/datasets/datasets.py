"""Sealing, second step.

Make the chosen reports a dataset, once and for good; and give it to the jobs that run over it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from helper.datasets.fair_cache import FairCache
from helper.datasets.frames import SealedSegment
from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import Handle, PreparationCache, opened_bytes
from helper.datasets.preparing import OpenChunk, Preparation, PreparedReports
from helper.datasets.proofs import fast_residues
from helper.datasets.records import DatasetRecords
from helper.datasets.segment_writer import ANY_SEGMENTS, SegmentPlan
from helper.datasets.segments import Ids, SegmentSlice
from helper.datasets.updates import RoundOpener, plan_segments
from helper.datasets.vault import Vault, VaultDamaged, distinguish_damage
from helper.ledger.ledger import Ledger
from helper.ledger.records import StoredDataset
from helper.trust.tasks import Caller, ServedTask, Tasks
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.releases.update import UpdateRound, form_of
from maskedlark.reports.dataset import OpenedDataset, PreparedShares, ShareForHelper, ShareOpener, dataset_id
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.update_sealing import UpdateOpener
from maskedlark.rpc.trust import host_of
from maskedlark.runtime.keyed_lock import KeyedLock

OpenShares: TypeAlias = Callable[[ShareOpener, Sequence[ShareForHelper]], PreparedShares]
"""`ShareOpener.open`, wherever it runs, and without looking for repeats between its parts."""

HANDLE_BYTES: Final = 16
OPENED_BYTES: Final = 1 << 30
"""The most memory that opened datasets take between rounds."""

_LOST: Final = "lost or damaged"
_LOST_ROUND: Final = "lost, damaged, or of another round"
_LOG: Final = logging.getLogger(__name__)


@frozen
class Datasets:
    """The datasets of one helper."""

    tasks: Tasks
    opening_keys: Callable[[], Sequence[OpeningKey]]
    open_shares: OpenShares
    head_start: PrefetchQuota
    ledger: Ledger
    vault: Vault
    prepared: PreparationCache
    kept: FairCache[bytes, OpenedDataset] = field(default_factory=lambda: FairCache(OPENED_BYTES))
    """The opened datasets that were used last."""
    _committing: KeyedLock = field(default_factory=KeyedLock, init=False)
    _reading: KeyedLock = field(default_factory=KeyedLock, init=False)

    @property
    def preparing_bytes(self) -> int:
        """The bytes that all preparations take of their quota."""
        return self.prepared.num_bytes

    @property
    def max_preparing_bytes(self) -> int:
        """The quota of all preparations."""
        return self.prepared.capacity_bytes

    def check_room(self) -> None:
        """Return if the disk has room for datasets; see `Vault.check_room`."""
        self.vault.check_room()

    def prepare(self, task_id: bytes, handle: bytes, caller: Caller) -> Preparation:
        """Begin to open shares of reports of labels, in a `with` block.

        Called by the ad server; the same handle again begins anew.

        Raises:
            JobRefused(MALFORMED): the handle has not 16 bytes; and the reasons of `Tasks.serve`.
        """
        served = self.tasks.serve(task_id, caller)
        opener = ShareOpener(
            task=served.task,
            role=served.role,
            opening_keys=self.opening_keys(),
            view_key=served.pair.view_key,
            residues_of=fast_residues if served.task.proof else residues,
        )

        def open_shares(incoming: Sequence[ShareForHelper]) -> PreparedShares:
            # Of no shares only the shape is asked for: there is nothing to send to other processes.
            return self.open_shares(opener, incoming) if incoming else opener.open([])

        return self._preparation(served, handle, open_shares, served.task.share_length, ANY_SEGMENTS)

    def prepare_round(
        self, task_id: bytes, handle: bytes, encoded_round: bytes, caller: Caller
    ) -> Preparation:
        """Begin to open shares of a federated round, in a `with` block; see `prepare`.

        Raises:
            InvalidTask: the round is not canonical.
            JobRefused(MALFORMED, UNDECLARED, ROUND_BEYOND_PLAN, NOISE_OUT_OF_RANGE, OVERFLOW): it is no round
                of the task; and the reasons of `prepare`.
        """
        served = self.tasks.serve(task_id, caller)
        one = decode(UpdateRound, encoded_round)
        one.check(served.task, records=served.task.max_dataset_size)
        form = form_of(served.task)
        payload_bytes = form.payload_bytes(served.role)
        opener = UpdateOpener(
            task=served.task,
            role=served.role,
            round_id=one.round_id,
            opening_keys=self.opening_keys(),
            view_key=served.pair.view_key,
        )
        open_shares = RoundOpener(opener, payload_bytes).open
        plan = plan_segments(form, payload_bytes, one.round_id)
        return self._preparation(served, handle, open_shares, payload_bytes, plan)

    def _preparation(
        self, served: ServedTask, name: bytes, open_shares: OpenChunk, share_length: int, plan: SegmentPlan
    ) -> Preparation:
        if len(name) != HANDLE_BYTES:
            raise JobRefused(JobReason.MALFORMED, f"a handle has {HANDLE_BYTES} bytes, not {len(name)}")
        return Preparation(
            handle=Handle(owner=host_of(served.task.origin), task_id=served.task_id, name=name),
            most_reports=served.task.max_dataset_size,
            share_length=share_length,
            open_shares=open_shares,
            head_start=self.head_start,
            ledger=self.ledger,
            shelf=self.prepared,
            vault=self.vault,
            plan=plan,
        )

    def commit(
        self,
        task_id: bytes,
        handle: bytes,
        chosen: bytes,
        expected_id: bytes,
        caller: Caller,
        *,
        actor: Actor = THIS_SERVICE,
    ) -> int:
        """Make the chosen reports of a preparation a dataset.

        Called by the ad server; idempotent for the same dataset.

        Args:
            task_id: The task.
            handle: The preparation's.
            chosen: One bit a prepared report, in order, least significant first; the last byte's unused bits
                are zero.
            expected_id: What the dataset's id must come out as.
            caller: The peer that asks.
            actor: How the audit log names the caller.

        Returns:
            The dataset's size.

        Guarantees: when it returns, the shares are on disk and the reports used up; when it raises, neither
            holds.

        Raises:
            JobRefused(UNKNOWN_DATASET, MALFORMED, DATASET_EMPTY, DATASET_CHANGED, REPORT_ALREADY_USED)
            HelperUnavailable: the disk or the store is full, or cannot be written.
        """
        key = Handle(
            owner=host_of(self.tasks.serve(task_id, caller).task.origin), task_id=task_id, name=handle
        )
        # One at a time: the second call of one commit finds what the first one has made.
        with self._committing.hold(task_id):
            # A repetition whose first answer was lost: the reports are used up, and by this very dataset.
            known = self._find_committed(expected_id, task_id)
            if known is not None:
                return known.size
            # Lent, not taken: what evicts preparations passes this one over while it is stored.
            with self.prepared.lent(key, PreparedReports) as prepared:
                if prepared is None or not prepared.writer.takes(expected_id):
                    raise JobRefused(
                        JobReason.UNKNOWN_DATASET,
                        "nothing is prepared under this handle (any more): prepare it again",
                    )
                rows = prepared.chosen(_chosen_rows(prepared.is_admitted, chosen))
                ids, tags = prepared.report_ids, prepared.view_tags
                # Of what this helper opened: the ad server cannot have it commit to other reports or views.
                _check_expected(expected_id, dataset_id(task_id, ids, tags, rows=rows))
                size = self._store(task_id, prepared, rows, expected_id, actor)
            # Only now: a commit that fails may be tried again with what is prepared.
            self.prepared.drop(key)
        _LOG.info("dataset committed: %d reports", size)
        return size

    def require(self, dataset_id: bytes, task_id: bytes) -> StoredDataset:
        """Return the ledger's record of a dataset of a task.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """
        stored = self._find_committed(dataset_id, task_id)
        if stored is None:
            raise JobRefused(
                JobReason.UNKNOWN_DATASET, "this helper has no such dataset of the task: seal it first"
            )
        return stored

    def open(self, dataset_id: bytes) -> OpenedDataset:
        """Return the shares of a committed dataset, from memory or from disk.

        Raises:
            JobRefused(DATASET_LOST): the stored shares are missing or damaged.
            HelperUnavailable: they cannot be read at the moment.
        """
        with self._reading.hold(dataset_id):  # so that who asks at the same time does not read it twice
            dataset = self.kept.get(dataset_id)
            if dataset is None:
                with _reporting_loss(dataset_id):
                    dataset = self.vault.read(dataset_id)
                owner = self._owner(dataset_id)
                self.kept.put(dataset_id, dataset, num_bytes=opened_bytes(dataset), owner=owner)
        return dataset

    def labels(self, dataset_id: bytes, interrupt: Interrupt = never) -> InputShares:
        """Return a committed dataset's shares in canonical order; no features if memory is short.

        `interrupt` is called while a segment is awaited.

        Raises:
            JobRefused(DATASET_LOST): the stored shares are missing or damaged.
            HelperUnavailable: they cannot be read at the moment.
        """
        if self._is_small(dataset_id):
            return self.open(dataset_id).shares
        with _reporting_loss(dataset_id):
            return self.vault.read(dataset_id, interrupt, has_features=False).shares

    def records(self, dataset_id: bytes, task_id: bytes) -> DatasetRecords:
        """Return the records of a committed dataset of a task, for an executor.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """
        size = self.require(dataset_id, task_id).size
        return DatasetRecords(
            count=size,
            pieces=lambda interrupt: self.pieces(dataset_id, interrupt),
            sealed=lambda interrupt: self._read_sealed(dataset_id, interrupt),
        )

    def pieces(self, dataset_id: bytes, interrupt: Interrupt = never) -> Iterator[SegmentSlice]:
        """Yield a committed dataset's shares: whole where it fits in memory, else by segments.

        Args:
            dataset_id: The dataset.
            interrupt: Called while a segment is awaited.

        Raises:
            JobRefused(DATASET_LOST): the stored shares are missing or damaged, perhaps after some pieces.
            HelperUnavailable: they cannot be read at the moment, perhaps after some pieces.
        """
        if self._is_small(dataset_id):
            yield SegmentSlice.whole(self.open(dataset_id))
            return
        with _reporting_loss(dataset_id), closing(self.vault.pieces(dataset_id, interrupt)) as pieces:
            yield from pieces

    def round_records(self, one: UpdateRound, dataset_id: bytes) -> DatasetRecords:
        """Return the records of a committed dataset of a federated round, whose features are payloads.

        Reading them raises JobRefused(DATASET_LOST) also if they are of another round. They are read once, so
        none is kept in memory.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """

        def pieces(interrupt: Interrupt) -> Iterator[SegmentSlice]:
            found = self.vault.pieces(dataset_id, interrupt, round_id=one.round_id)
            with _reporting_loss(dataset_id, _LOST_ROUND), closing(found):
                yield from found

        return DatasetRecords(
            count=self.require(dataset_id, one.job.task_id).size,
            pieces=pieces,
            sealed=lambda interrupt: self._read_sealed(dataset_id, interrupt, one.round_id, _LOST_ROUND),
        )

    def _read_sealed(
        self, dataset_id: bytes, interrupt: Interrupt, round_id: bytes = b"", lost: str = _LOST
    ) -> list[SealedSegment]:
        with _reporting_loss(dataset_id, lost):
            segments = self.vault.read_sealed(dataset_id, interrupt, round_id=round_id)
        return [replace(one, read=partial(_read_reporting_loss, dataset_id, one.read)) for one in segments]

    def _is_small(self, dataset_id: bytes) -> bool:
        """Return whether a dataset is in memory, or fits there."""
        if self.kept.get(dataset_id) is not None:
            return True
        with _reporting_loss(dataset_id):
            return self.vault.num_bytes(dataset_id) <= self.kept.capacity_bytes

    def _store(
        self,
        task_id: bytes,
        prepared: PreparedReports,
        rows: NDArray[np.intp],
        expected_id: bytes,
        actor: Actor,
    ) -> int:
        """Store the shares first, then the ledger's record.

        A crash between leaves objects that no ledger names, and that are swept.

        One that is refused is taken back, unless it is refused because another process has committed this
        very dataset, with separate objects.
        """
        manifest = self.vault.commit(prepared.writer, expected_id, prepared.ranks(rows))
        try:
            self.ledger.add_dataset(expected_id, task_id, Ids(prepared.report_ids[rows]), manifest, actor)
        except JobRefused:
            if self._find_committed(expected_id, task_id) is None:
                prepared.writer.withdraw()
                raise
        else:
            prepared.writer.commit(expected_id)
        return len(rows)

    def _find_committed(self, dataset_id: bytes, task_id: bytes) -> StoredDataset | None:
        return self.ledger.dataset(task_id, dataset_id)

    def _owner(self, dataset_id: bytes) -> str:
        """Return the host of the ad server whose dataset it is."""
        known = self.ledger.dataset_of_any_task(dataset_id)
        task = self.ledger.task(known.task_id) if known is not None else None
        return host_of(task.origin) if task is not None else ""


@contextmanager
def _reporting_loss(dataset_id: bytes, how: str = _LOST) -> Iterator[None]:
    """Tell a caller that a dataset is lost, and this helper's operator how.

    Raises:
        JobRefused(DATASET_LOST): its vault says that it is damaged.
    """
    try:
        yield
    except VaultDamaged as error:
        _LOG.error("dataset %s: %s", dataset_id.hex(), error)
        raise dataset_lost(how) from None


def _read_reporting_loss(dataset_id: bytes, read: Callable[[], bytes]) -> bytes:
    """Read a sealed part whose dataset a vault has found.

    Raises:
        JobRefused(DATASET_LOST): it is missing.
        HelperUnavailable: it cannot be read at the moment.
    """
    with _reporting_loss(dataset_id), distinguish_damage():
        return read()


def dataset_lost(how: str = _LOST) -> JobRefused:
    """Build the refusal for a dataset that cannot be read."""
    return JobRefused(JobReason.DATASET_LOST, f"this helper's shares of the dataset are {how}")


def _check_expected(expected_id: bytes, computed_id: bytes) -> None:
    """Refuse to commit reports that make another dataset than the caller expects.

    Raises:
        JobRefused(DATASET_CHANGED)
    """
    if computed_id != expected_id:
        raise JobRefused(
            JobReason.DATASET_CHANGED, "the chosen reports make another dataset id than the expected one"
        )


def _chosen_rows(is_admitted: NDArray[np.bool_], chosen: bytes) -> NDArray[np.bool_]:
    """Decode the bitmap to bool (n,), a non-empty subset of the admitted rows.

    Raises:
        JobRefused(MALFORMED, DATASET_EMPTY)
    """
    count = len(is_admitted)
    bits = np.unpackbits(np.frombuffer(chosen, np.uint8), bitorder="little").astype(np.bool_)
    # A choice has one form: the spare bits are zero.
    if len(chosen) != -(-count // 8) or bits[count:].any():
        raise JobRefused(
            JobReason.MALFORMED, f"the choice must hold one bit for each of {count} prepared reports"
        )
    rows = bits[:count]
    if (rows & ~is_admitted).any():
        raise JobRefused(JobReason.MALFORMED, "the choice holds a report that this helper did not admit")
    if not rows.any():
        raise JobRefused(JobReason.DATASET_EMPTY, "no report was chosen")
    return rows

"""Step 3 and 4: the report that travels, and the one call by which a browser makes it.

A report is two sealed shares under one random id and a coarse time. The ad server stores it blind; it can
check that the parts have the right sizes, and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from struct import pack

from maskedlark.canonical import digest
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness
from maskedlark.reports.helper_pair_key import ViewKey
from maskedlark.reports.report import Example, SplitExample, split
from maskedlark.reports.sealing import OVERHEADS, OpeningKey, SealingKey, share_info
from maskedlark.reports.task import REPORT_DIGEST_BYTES, REPORT_ID_BYTES, Task, TaskBundle
from maskedlark.reports.updates import ROUND_ID_BYTES


@frozen
class SealedShare:
    """What one helper will open: the id of its HPKE key, and the encapsulated key with the ciphertext."""

    key_id: int
    ciphertext: bytes


@frozen
class Report:
    """What a browser uploads.

    Attributes:
        task_id: 32 bytes.
        report_id: 16 random bytes: of all reports under one id, one at most is in a dataset.
        time_bucket: The time of the upload, after its random delay, divided by the task's time_bucket_s.
        shares: One for each helper, by role.
        round_id: Of an update report: the round that it answers, 32 bytes; otherwise empty.
    """

    task_id: bytes
    report_id: bytes
    time_bucket: int
    shares: tuple[SealedShare, SealedShare]
    round_id: bytes = b""

    @property
    def digest(self) -> bytes:
        """Return the digest of everything that was sent: equal for a report that is sent again only."""
        first, second = self.shares
        # Every field: under an id that is known, other bytes are another report, and displace nothing (ADR
        # 36).
        numbers = pack("<QII", self.time_bucket, first.key_id, second.key_id)
        parts = (self.task_id, self.round_id, self.report_id, numbers, first.ciphertext, second.ciphertext)
        return digest("report as sent", *parts)[:REPORT_DIGEST_BYTES]


@frozen
class _SplitReport:
    """A report that is not sealed yet.

    Attributes:
        report_id: 16 random bytes.
        time_bucket: As in `Report`.
        plaintexts: One for each helper, by role.
    """

    report_id: bytes
    time_bucket: int
    plaintexts: SplitExample = field(repr=False)


class BundleSealer:
    """What seals shares to the helpers of one task, whose keys are verified when it is built."""

    def __init__(self, bundle: TaskBundle, *, now: float) -> None:
        """Check the bundle: its four signatures, that its key lists are not over, and what its reports hold.

        Args:
            bundle: As the task host serves it.
            now: Unix seconds on the browser's or the device's own clock.

        Raises:
            InvalidTask: one of them is not so.
        """
        bundle.verify()
        bundle.check_fresh(now)
        self._bundle = bundle
        self.task = bundle.task
        self._task_id = bundle.task.task_id
        self._keys = tuple(SealingKey(keys.key_list.keys[0]) for keys in bundle.key_lists)

    def check_fresh(self, now: float) -> None:
        """Refuse to go on sealing when the helpers' key lists are over, as `TaskBundle.check_fresh` does."""
        self._bundle.check_fresh(now)

    def _seal_shares(
        self, plaintexts: tuple[bytes, bytes], info: Callable[..., bytes]
    ) -> tuple[SealedShare, SealedShare]:
        """Seal each share to its helper, bound by `info` of its role and key_id."""
        first, second = (
            SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info(role=role, key_id=key.key_id)))
            for role, (key, plaintext) in enumerate(zip(self._keys, plaintexts, strict=True))
        )
        return first, second


class Sealer(BundleSealer):
    """Makes reports of one task. The browser keeps one."""

    def __init__(self, bundle: TaskBundle, *, now: float) -> None:
        """Check the bundle, and that the task takes labels; see `BundleSealer`."""
        super().__init__(bundle, now=now)
        if bundle.task.updates is not None:
            raise InvalidTask(
                "the task takes updates of a model, and no labels: its reports are made by a device that "
                "trains"
            )

    def report(self, example: Example, *, unix_s: float, randomness: Randomness) -> Report:
        """Split an example and seal each share to its helper. Called by the browser.

        Args:
            example: A real example, or one without a label for a fake report.
            unix_s: When the report is uploaded (not when the event happened: that would undo the random
                delay); only its time bucket is sent.
            randomness: Draws the report id, the decoys and the masks; HPKE's ephemeral keys are the library's
                own.

        Raises:
            InvalidTask: the example does not fit the task.
        """
        [split] = self.split([example], [unix_s], [randomness])
        return self.seal(split)

    def split(
        self, examples: Sequence[Example], moments: Sequence[float], sources: Sequence[Randomness]
    ) -> list[_SplitReport]:
        """Build several examples' plaintexts, each with its moment and randomness: `report`'s first half.

        For many reports, first split and then seal: in turns, either evicts the other from the processor's
        caches, and both take a fifth longer.
        """
        ids = [randomness(REPORT_ID_BYTES) for randomness in sources]
        both = split(self.task, examples, sources, report_ids=ids, task_id=self._task_id)
        return [
            _SplitReport(report_id=report_id, time_bucket=self.task.time_bucket(at_s), plaintexts=plaintexts)
            for report_id, at_s, plaintexts in zip(ids, moments, both, strict=True)
        ]

    def seal(self, report: _SplitReport) -> Report:
        """Seal a report's plaintexts: `report`'s second half."""
        task_id, report_id, time_bucket = self._task_id, report.report_id, report.time_bucket
        info = partial(share_info, task_id=task_id, report_id=report_id, time_bucket=time_bucket)
        shares = self._seal_shares(report.plaintexts, info)
        return Report(task_id=task_id, report_id=report_id, time_bucket=time_bucket, shares=shares)


class ReportCheck:
    """What the ad server can see of a task's reports: task, form, period, id and sizes.

    What it compares with is worked out once a task, not for each report: a task's id is a digest of all of
    it.
    """

    __slots__ = ("_lengths", "_task", "_task_id")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._task_id = task.task_id
        self._lengths = (task.plaintext_length(0), task.plaintext_length(1))

    def check(self, report: Report) -> None:
        """Refuse a report that cannot be one of the task's; only an update names a round.

        Raises:
            ReportRejected(WRONG_TASK, OUTSIDE_TASK_PERIOD, MALFORMED, WRONG_LENGTH)
        """
        if report.task_id != self._task_id or bool(report.round_id) != (self._task.updates is not None):
            raise ReportRejected(
                ReportReason.WRONG_TASK, "the report is of another task, or of another form than the task's"
            )
        if len(report.report_id) != REPORT_ID_BYTES or len(report.round_id) not in (0, ROUND_ID_BYTES):
            raise ReportRejected(
                ReportReason.MALFORMED,
                f"a report has an id of {REPORT_ID_BYTES} bytes, an update also a round of {ROUND_ID_BYTES}",
            )
        self._task.check_time_bucket(report.time_bucket)
        for length, share in zip(self._lengths, report.shares, strict=True):
            # The message's field is wider than the one byte that `info` binds.
            if not 0 <= share.key_id <= 255:
                raise ReportRejected(ReportReason.MALFORMED, "a key id is one byte")
            _check_sealed_length(length, share.ciphertext)


class SharesOpener:
    """Opens one helper's sealed shares of one task: what label reports and updates have in common."""

    def __init__(
        self,
        *,
        task: Task,
        role: int,
        opening_keys: Sequence[OpeningKey],
        view_key: ViewKey,
        info: Callable[..., bytes],
    ) -> None:
        """Open shares of one role; `info` gives what a share is bound to, as for `BundleSealer`."""
        self._task = task
        self._task_id = task.task_id
        self._length = task.plaintext_length(role)
        self._time_buckets = task.time_buckets
        self._role = role
        self._keys = {key.key_id: key for key in opening_keys}
        self._view_key = view_key
        self._info = info

    @property
    def task(self) -> Task:
        """The task whose shares are opened."""
        return self._task

    @property
    def role(self) -> int:
        """The helper's in the task."""
        return self._role

    @property
    def opening_keys(self) -> tuple[OpeningKey, ...]:
        """The keys that open the shares."""
        return tuple(self._keys.values())

    @property
    def view_key(self) -> ViewKey:
        """The key that tags their views."""
        return self._view_key

    def _open(self, report_id: bytes, time_bucket: int, key_id: int, ciphertext: bytes) -> bytes:
        """Decrypt one share, of the task's length.

        Raises:
            ReportRejected(MALFORMED, OUTSIDE_TASK_PERIOD, WRONG_LENGTH, UNKNOWN_KEY, NOT_OPENED)
        """
        # The cheap looks first: opening a share takes some fifty microseconds.
        if len(report_id) != REPORT_ID_BYTES:
            raise ReportRejected(ReportReason.MALFORMED, f"a report id has {REPORT_ID_BYTES} bytes")
        if time_bucket not in self._time_buckets:
            raise self._task.outside_period(time_bucket)
        _check_sealed_length(self._length, ciphertext)
        key = self._keys.get(key_id)
        if key is None:
            raise ReportRejected(ReportReason.UNKNOWN_KEY, f"this helper has no HPKE key {key_id}")
        info = self._info(
            task_id=self._task_id,
            report_id=report_id,
            time_bucket=time_bucket,
            role=self._role,
            key_id=key_id,
        )
        plaintext = key.open(ciphertext, info)
        # Again after decryption: suites have different overheads, so a sealed length allows several
        # plaintexts.
        if len(plaintext) != self._length:
            raise ReportRejected(
                ReportReason.WRONG_LENGTH,
                f"an input share of this task has {self._length} bytes, not {len(plaintext)}",
            )
        return plaintext


def _check_sealed_length(plaintext_length: int, ciphertext: bytes) -> None:
    """Refuse a sealed share that no suite would make of a plaintext of this length."""
    if len(ciphertext) - plaintext_length not in OVERHEADS:
        lengths = " or ".join(str(plaintext_length + overhead) for overhead in OVERHEADS)
        raise ReportRejected(
            ReportReason.WRONG_LENGTH,
            f"a sealed share of this task has {lengths} bytes, not {len(ciphertext)}",
        )

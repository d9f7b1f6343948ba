"""Steps 3 to 5 of federated training.

The update report that travels, how a device makes it, and how a helper opens it.

    report = UpdateSealer(bundle, now=...).report(round_id, clip, vector, unix_s=..., randomness=...)    # the
    device, once a round; what it
                                                                                    # sends again are these
                                                                                    very bytes
    opened = UpdateOpener(task=..., role=..., round_id=..., ...).open(share)              # the helper

Everything is as of a report of masked labels (`maskedlark.reports.upload`), and one thing is bound beside
it: the round. A share that is
moved to another round, job, model or task does not open.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.privacy.clip import Clip
from maskedlark.randomness import Randomness
from maskedlark.reports.pair import PairKey
from maskedlark.reports.sealing import MAX_OVERHEAD, MIN_OVERHEAD, OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES, Task, TaskBundle
from maskedlark.reports.updates import (
    ROUND_ID_BYTES,
    UpdateForm,
    UpdateVector,
    check_vector,
    decode_update_share,
    split_update,
    update_info,
)
from maskedlark.reports.upload import BundleSealer, Report, SealedShare

_LARGEST_KEY_ID: Final = 255


class UpdateSealer(BundleSealer):
    """Makes the update reports of one task. A device keeps one."""

    def __init__(self, bundle: TaskBundle, *, now: float) -> None:
        """Check the bundle, and that the task takes updates; see `BundleSealer`."""
        super().__init__(bundle, now=now)
        self.form = _form(bundle.task)

    def report(
        self, round_id: bytes, clip: Clip, vector: UpdateVector, *, unix_s: float, randomness: Randomness
    ) -> Report:
        """Split an update, or cover, and seal each share to its helper.

        Called by the device, once for each round that it answers.

        Args:
            round_id: `UpdateRound.round_id` of the round as the device itself computed it.
            clip: The round's bound.
            vector: An update, or `cover`.
            unix_s: When the report is uploaded: a time that was fixed before the coin was flipped.
            randomness: Draws the report id, the nonce and the seed: fresh for each report.

        Raises:
            InvalidTask: the vector is not one that may be sent: see `check_vector`.
        """
        check_vector(self.form, clip, vector)
        time_bucket = self.task.time_bucket(unix_s)
        report_id = randomness(REPORT_ID_BYTES)
        plaintexts = split_update(vector, task_id=self._task_id, report_id=report_id, randomness=randomness)
        info = partial(
            update_info,
            task_id=self._task_id,
            round_id=round_id,
            report_id=report_id,
            time_bucket=time_bucket,
        )
        return Report(
            task_id=self._task_id,
            report_id=report_id,
            time_bucket=time_bucket,
            shares=self._sealed(plaintexts, info),
            round_id=round_id,
        )


def check_update_report(task: Task, report: Report) -> None:
    """What the ad server can see of an update report: task, round, period, id and sizes.

    Raises:
        ReportRejected(WRONG_TASK, OUTSIDE_TASK_PERIOD, MALFORMED, WRONG_LENGTH)
    """
    if report.task_id != task.task_id or task.updates is None:
        raise ReportRejected(
            ReportReason.WRONG_TASK,
            "the report is of another task, or the task's reports hold labels instead",
        )
    if len(report.report_id) != REPORT_ID_BYTES or len(report.round_id) != ROUND_ID_BYTES:
        raise ReportRejected(
            ReportReason.MALFORMED,
            f"an update report has an id of {REPORT_ID_BYTES} bytes and a round of {ROUND_ID_BYTES}",
        )
    task.check_time_bucket(report.time_bucket)
    for role, share in enumerate(report.shares):
        if not 0 <= share.key_id <= _LARGEST_KEY_ID:
            raise ReportRejected(ReportReason.MALFORMED, "a key id is one byte")
        _check_length(task.updates, role, share.ciphertext)


class OpenedUpdate(NamedTuple):
    """What a helper keeps of one share, and tells of it.

    Attributes:
        payload: A seed, or 8 bytes a coordinate.
        view_tag: 16 bytes, equal at both helpers if they opened the same report of the same round.
    """

    payload: bytes
    view_tag: bytes


class UpdateOpener:
    """Opens and checks one helper's shares of one round.

    Called by a helper; pure but for the keys it holds.
    """

    def __init__(
        self, *, task: Task, role: int, round_id: bytes, opening_keys: Sequence[OpeningKey], pair: PairKey
    ) -> None:
        self._task = task
        self._task_id = task.task_id
        self._form = _form(task)
        self._role = role
        self._round_id = round_id
        self._keys = {key.key_id: key for key in opening_keys}
        self._pair = pair

    def __reduce__(self) -> tuple[Any, ...]:
        """To travel to another process of the same helper."""
        return _opener, (self._task, self._role, self._round_id, tuple(self._keys.values()), self._pair)

    def open(self, report_id: bytes, time_bucket: int, share: SealedShare) -> OpenedUpdate:
        """Open one share.

        Raises:
            ReportRejected(MALFORMED, OUTSIDE_TASK_PERIOD, WRONG_LENGTH, UNKNOWN_KEY, NOT_OPENED,
            WRONG_VERSION, MASK_NOT_CANONICAL)
        """
        if len(report_id) != REPORT_ID_BYTES:
            raise ReportRejected(ReportReason.MALFORMED, f"a report id has {REPORT_ID_BYTES} bytes")
        self._task.check_time_bucket(time_bucket)
        _check_length(self._form, self._role, share.ciphertext)
        key = self._keys.get(share.key_id)
        if key is None:
            raise ReportRejected(ReportReason.UNKNOWN_KEY, f"this helper has no HPKE key {share.key_id}")
        info = update_info(
            task_id=self._task_id,
            round_id=self._round_id,
            report_id=report_id,
            time_bucket=time_bucket,
            role=self._role,
            key_id=share.key_id,
        )
        read = decode_update_share(self._form, self._role, key.open(share.ciphertext, info), self._round_id)
        return OpenedUpdate(read.payload, self._pair.view_tag(report_id, read.view))


def _form(task: Task) -> UpdateForm:
    if task.updates is None:
        raise InvalidTask("the task declares no updates: its reports hold masked labels")
    return task.updates


def _check_length(form: UpdateForm, role: int, ciphertext: bytes) -> None:
    """Refuse a sealed share that no suite would make of an update of this form."""
    least, most = form.share_length(role) + MIN_OVERHEAD, form.share_length(role) + MAX_OVERHEAD
    if not least <= len(ciphertext) <= most:
        raise ReportRejected(
            ReportReason.WRONG_LENGTH,
            f"a sealed update share of this task for helper {role} has {least} to {most} bytes, not "
            f"{len(ciphertext)}",
        )


def _opener(
    task: Task, role: int, round_id: bytes, opening_keys: Sequence[OpeningKey], pair: PairKey
) -> UpdateOpener:
    return UpdateOpener(task=task, role=role, round_id=round_id, opening_keys=opening_keys, pair=pair)

"""Steps 3 to 5 of federated training: the update report, which a device makes and a helper opens.

    sealer = UpdateSealer(bundle, now=...)                                      # the device
    report = sealer.report(round_id, clip, vector, unix_s=..., randomness=...)  # once a round
    opened = UpdateOpener(task=..., role=..., round_id=..., ...).open(...)      # the helper

A share is sealed like that of a report of masked labels (`maskedlark.reports.upload`), with the round bound
too: a share that is moved to another round, job, model or task does not open.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from maskedlark.errors import InvalidTask
from maskedlark.privacy.clip import Clip
from maskedlark.randomness import Randomness
from maskedlark.reports.helper_pair_key import ViewKey
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES, Task, TaskBundle
from maskedlark.reports.updates import (
    UpdateForm,
    UpdateVector,
    split_update,
    update_info,
)
from maskedlark.reports.upload import BundleSealer, Report, SealedShare, SharesOpener


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
            vector: An update, or `UpdateForm.zeros`.
            unix_s: When the report is uploaded: a time that was fixed before the coin was flipped.
            randomness: Draws the report id, the nonce and the seed: fresh for each report.

        Raises:
            InvalidTask: the vector is not one that may be sent: see `UpdateForm.check_vector`.
        """
        self.form.check_vector(clip, vector)
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
            shares=self._seal_shares(plaintexts, info),
            round_id=round_id,
        )


class _OpenedUpdate(NamedTuple):
    """What a helper keeps of one share, and tells of it.

    Attributes:
        payload: A seed, or 8 bytes a coordinate.
        view_tag: 16 bytes, equal at both helpers if they opened the same report of the same round.
    """

    payload: bytes
    view_tag: bytes


class UpdateOpener(SharesOpener):
    """Opens and checks one helper's shares of one round.

    Called by a helper; pure but for the keys it holds.
    """

    def __init__(
        self, *, task: Task, role: int, round_id: bytes, opening_keys: Sequence[OpeningKey], view_key: ViewKey
    ) -> None:
        info = partial(update_info, round_id=round_id)
        super().__init__(task=task, role=role, opening_keys=opening_keys, view_key=view_key, info=info)
        self._form = _form(task)
        self._round_id = round_id

    def open(self, report_id: bytes, time_bucket: int, share: SealedShare) -> _OpenedUpdate:
        """Open one share.

        Raises:
            ReportRejected(MALFORMED, OUTSIDE_TASK_PERIOD, WRONG_LENGTH, UNKNOWN_KEY, NOT_OPENED,
            WRONG_VERSION, MASK_NOT_CANONICAL)
        """
        plaintext = self._open(report_id, time_bucket, share.key_id, share.ciphertext)
        read = self._form.decode_share(self._role, plaintext, self._round_id)
        return _OpenedUpdate(read.payload, self._view_key.tag(report_id, read.view))


def _form(task: Task) -> UpdateForm:
    if task.updates is None:
        raise InvalidTask("the task declares no updates: its reports hold masked labels")
    return task.updates

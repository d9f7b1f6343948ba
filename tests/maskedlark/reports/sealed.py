"""Reports of any two plaintexts, sealed as a browser seals them: made from public keys only."""

from collections.abc import Sequence

from maskedlark.reports.sealing import SealingKey, share_info
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, SealedShare
from tests.builders import NOW


def sealed(bundle: TaskBundle, plaintexts: Sequence[bytes], report_id: bytes, unix_s: float = NOW) -> Report:
    """A report of this id."""
    task, shares = bundle.task, []
    bucket = task.time_bucket(unix_s)
    for role, plaintext in enumerate(plaintexts):
        key = SealingKey(bundle.key_lists[role].key_list.keys[0])
        info = share_info(
            task_id=task.task_id, report_id=report_id, time_bucket=bucket, role=role, key_id=key.key_id
        )
        shares.append(SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info)))
    return Report(
        task_id=task.task_id, report_id=report_id, time_bucket=bucket, shares=(shares[0], shares[1])
    )

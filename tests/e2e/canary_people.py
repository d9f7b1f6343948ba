"""The people of the canary run.

Everything that their browsers know is distinctive, and so is every report that is not as it should be.
"""

import json
from typing import Final

import numpy as np

from maskedlark.randomness import seeded
from maskedlark.reports.measurement import MAX_CODE
from maskedlark.reports.report import Example, MeasuredValues, SplitExample
from maskedlark.reports.sealing import OVERHEADS, SealingKey, share_info
from maskedlark.reports.task import REPORT_ID_BYTES, Task, TaskBundle
from maskedlark.reports.upload import Report, SealedShare

FEATURES: Final = 24
REPORTS: Final = 120
MAX_LABEL: Final = 1_048_575
BUCKETS: Final = 1_025
"""Each is 1,023 wide, so the multiples of 1,023 are what a label can become, and stay what they are."""
CAMPAIGNS: Final = (3_735_928_559, 3_405_691_582)
MAX_SPEND: Final = 2_000_000_000
MEASUREMENT: Final = json.dumps(
    {
        "min_cell_count": 20,
        "values": [{"name": "spend", "low": 0, "high": MAX_SPEND}],
        "keys": [{"name": "campaign"}, {"name": "person"}],
    }
)
_FEATURES: Final = np.frombuffer(seeded(1, "canary features")(REPORTS * FEATURES), np.uint8).reshape(
    REPORTS, FEATURES
)


def person(number: int) -> Example:
    """A person of many like no other: a label of seven digits, a spending and a key of ten."""
    drawn = seeded(number, "canary person")
    person_code = MAX_CODE - int.from_bytes(drawn(4), "little") // 2
    spend = MAX_SPEND // 2 + int.from_bytes(drawn(4), "little") % (MAX_SPEND // 2)
    label = MAX_LABEL // BUCKETS * (BUCKETS - number % 47)
    measured = MeasuredValues(keys=(CAMPAIGNS[number % len(CAMPAIGNS)], person_code), values=(spend,))
    return Example(features=_FEATURES[number], label=float(label), measured=measured)


def broken(task: Task, whole: SplitExample) -> dict[str, SplitExample]:
    """What no browser of ours would seal, each by what is wrong with it; the secrets are still in there."""
    labels_start = task.view_length - 4 * (task.num_candidates + 2)

    def with_bytes(start: int, others: bytes) -> SplitExample:
        return SplitExample(*(one[:start] + others + one[start + len(others) :] for one in whole))

    return {
        # sealed it is as long as a share under the other kind of suite, so that the ad server takes it
        "wrong length": SplitExample(*(one + bytes(max(OVERHEADS) - min(OVERHEADS)) for one in whole)),
        "wrong version": with_bytes(0, b"\xfe"),
        "label outside the task": with_bytes(labels_start, b"\xff\xff\xff\x7f"),
        "mask that is no field element": with_bytes(task.view_length, b"\xff" * 8),
    }


def sealed(bundle: TaskBundle, plaintexts: SplitExample, *, unix_s: float, number: int) -> Report:
    """A report of any plaintexts, sealed as a browser does."""
    report_id, time_bucket = seeded(number, "broken report")(REPORT_ID_BYTES), bundle.task.time_bucket(unix_s)
    shares = []
    for role, plaintext in enumerate(plaintexts):
        key = SealingKey(bundle.key_lists[role].key_list.keys[0])
        info = share_info(
            task_id=bundle.task.task_id,
            report_id=report_id,
            time_bucket=time_bucket,
            role=role,
            key_id=key.key_id,
        )
        shares.append(SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info)))
    return Report(
        task_id=bundle.task.task_id,
        report_id=report_id,
        time_bucket=time_bucket,
        shares=(shares[0], shares[1]),
    )

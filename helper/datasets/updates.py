"""A federated round as a dataset: a device's share of its update is a record of a payload and no labels.

    prepared = RoundOpener(opener, payload_bytes).open(incoming)
    prepared.report_ids, prepared.shares.features         # ids, and a payload for each: what is added up

Everything else is as for reports of labels: preparing, committing, sealing, quotas and sweeping.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from helper.datasets.segment_writer import SegmentPlan
from helper.datasets.segments import RowShape
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.reports.dataset import AdmittedSet, PreparedShares, ShareForHelper, with_zeros_for_ids
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES
from maskedlark.reports.update_sealing import UpdateOpener
from maskedlark.reports.updates import UpdateForm

MOST_COORDINATES: Final = 1 << 24
"""So many coordinates are in one segment at most: a tenth of a second of a worker's time to add them up."""
MOST_SHARES: Final = 1 << 13
"""So many shares are in one segment at most, however short they are."""
MOST_BYTES: Final = 8 << 20
"""So many bytes are in one segment at most: a few segments are in memory while a round is added up."""


class RoundOpener:
    """Opens the shares of one round, as `ShareOpener` opens those of reports of labels."""

    def __init__(self, opener: UpdateOpener, payload_bytes: int) -> None:
        self._opener = opener
        self._shape = _shape_of(payload_bytes)

    def open(self, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """Open a chunk of shares; drop what is wrong, each with its reason."""
        rows, tags = self._shape.empty(len(incoming)), np.zeros((len(incoming), VIEW_TAG_BYTES), np.uint8)
        is_admitted, dropped = np.zeros(len(incoming), np.bool_), Counter[ReportReason]()
        # Each share has its row, also one whose id has no place there: it is opened below, and rejected.
        ids = with_zeros_for_ids([item.report_id for item in incoming])
        rows.report_ids[:] = np.frombuffer(b"".join(ids), np.uint8).reshape(rows.report_ids.shape)
        for row, item in enumerate(incoming):
            try:
                opened = self._opener.open(item.report_id, item.time_bucket, item.share)
            except ReportRejected as rejection:
                dropped[rejection.reason] += 1
                continue
            rows.shares.features[row] = np.frombuffer(opened.payload, np.uint8)
            tags[row] = np.frombuffer(opened.view_tag, np.uint8)
            is_admitted[row] = True
        admitted = AdmittedSet(is_admitted=is_admitted, view_tags=tags, dropped=dropped)
        return PreparedShares(report_ids=rows.report_ids, shares=rows.shares, admitted=admitted)


def _shape_of(payload_bytes: int) -> RowShape:
    """Return the shape of a record of an update."""
    return RowShape(features=payload_bytes, candidates=0, keys=0, columns=0)


def plan_segments(form: UpdateForm, payload_bytes: int, round_id: bytes) -> SegmentPlan:
    """Return the segments of a round: each is what one worker adds up at once."""
    most = min(MOST_SHARES, MOST_COORDINATES // form.length, MOST_BYTES // payload_bytes)
    return SegmentPlan(round_id=round_id, most_records=max(1, most))

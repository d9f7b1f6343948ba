"""What is known of the reports of a preparation, in as many bytes a report however small its chunks are.

rows = AdmittedRows()
rows.add(report_ids, admitted)          # for each chunk
rows.report_ids, rows.view_tags, rows.is_admitted, rows.dropped     # nothing is added after that
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import ReportReason
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES
from maskedlark.reports.task import REPORT_ID_BYTES


class AdmittedRows:
    """The ids, tags and admissions of n reports, in the order in which they came."""

    def __init__(self) -> None:
        self._ids, self._tags, self._is_admitted = bytearray(), bytearray(), bytearray()
        self.dropped: Counter[ReportReason] = Counter()

    def __len__(self) -> int:
        return len(self._is_admitted)

    def add(self, report_ids: NDArray[np.uint8], admitted: AdmittedSet) -> None:
        """Append a chunk: u8 (m, 16) ids and what was found of them."""
        self._ids += np.ascontiguousarray(report_ids).tobytes()
        self._tags += np.ascontiguousarray(admitted.view_tags).tobytes()
        self._is_admitted += admitted.is_admitted.tobytes()
        self.dropped += admitted.dropped

    @property
    def report_ids(self) -> NDArray[np.uint8]:
        """u8 (n, 16)."""
        return np.frombuffer(self._ids, np.uint8).reshape(-1, REPORT_ID_BYTES)

    @property
    def view_tags(self) -> NDArray[np.uint8]:
        """u8 (n, 16), zeros where not admitted."""
        return np.frombuffer(self._tags, np.uint8).reshape(-1, VIEW_TAG_BYTES)

    @property
    def is_admitted(self) -> NDArray[np.bool_]:
        """Bool (n,)."""
        return np.frombuffer(self._is_admitted, np.bool_)

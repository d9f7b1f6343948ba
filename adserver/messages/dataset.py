"""Datasets: in a list, and as a client asks to have one sealed."""

from collections import Counter
from typing import Self

from pydantic import Field

from adserver.messages.base import Message, RequestBody, Whole
from adserver.records.dataset_state import DatasetState
from adserver.store.datasets import Dataset
from maskedlark.errors import ReportReason
from maskedlark.frozen import pick_attributes

_SAME = ("dataset_id", "handle", "task_id", "state", "created_at", "received", "view_mismatch")


class DatasetSummary(Message):
    """A dataset and the outcome of its reports, at each helper by reason."""

    dataset_id: bytes | None
    task_id: bytes
    state: DatasetState
    created_at: float
    received: Whole
    view_mismatch: Whole
    admitted: Whole
    dropped: tuple[dict[ReportReason, Whole], dict[ReportReason, Whole]]

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Describe a dataset."""
        first, second = (dict(sorted(one.items())) for one in dataset.dropped)
        return cls(**pick_attributes(dataset, _SAME), admitted=dataset.size, dropped=(first, second))


class DatasetItem(DatasetSummary):
    """A dataset of the admin API, with the name of its preparation."""

    handle: bytes

    def value(self) -> Dataset:
        """Return the dataset."""
        first, second = map(Counter, self.dropped)
        return Dataset(**pick_attributes(self, _SAME), size=self.admitted, dropped=(first, second))


class SealDataset(RequestBody):
    """A dataset to seal; see `adserver dataset seal` for each field's meaning."""

    task: str = Field("", description="The start of its id; may be omitted if there is only one.")
    # Within the database's integers, and above every dataset.
    max_reports: int | None = Field(None, ge=1, le=1 << 40)
    allow_small: bool = False

"""What a helper tells of dropped reports."""

from collections import Counter

from maskedlark.errors import ReportReason
from maskedlark.reports.dataset import as_told
from maskedlark.reports.input_shares import FOUND_INSIDE


def test_nothing_is_told_of_what_was_wrong_inside_a_share() -> None:
    dropped = Counter({reason: place for place, reason in enumerate(ReportReason, start=1)})
    told = as_told(dropped)
    assert FOUND_INSIDE
    assert not set(told) & set(FOUND_INSIDE) - {ReportReason.NOT_OPENED}
    assert told.total() == dropped.total()
    for reason in set(ReportReason) - set(FOUND_INSIDE) - {ReportReason.NOT_OPENED}:
        assert told[reason] == dropped[reason]

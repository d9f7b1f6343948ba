"""What a helper tells of dropped reports."""

from collections import Counter
from dataclasses import replace

from maskedlark.errors import ReportReason
from maskedlark.reports.dataset import as_told
from maskedlark.reports.input_shares import FOUND_INSIDE
from tests.builders import examples, reports, shares_for, world


def test_nothing_is_told_of_what_was_wrong_inside_a_share() -> None:
    dropped = Counter({reason: place for place, reason in enumerate(ReportReason, start=1)})
    told = as_told(dropped)
    assert FOUND_INSIDE
    assert not set(told) & set(FOUND_INSIDE) - {ReportReason.NOT_OPENED}
    assert told.total() == dropped.total()
    for reason in set(ReportReason) - set(FOUND_INSIDE) - {ReportReason.NOT_OPENED}:
        assert told[reason] == dropped[reason]


def test_of_shares_under_one_id_the_first_that_opens_is_admitted() -> None:
    of = world()
    [share] = shares_for(reports(of, examples(of.task, 1)), 0)
    junk = replace(share, share=replace(share.share, ciphertext=bytes(len(share.share.ciphertext))))
    admitted = of.opener(0).open([junk, share, share]).admitted
    assert admitted.is_admitted.tolist() == [False, True, False]
    assert admitted.dropped == {ReportReason.NOT_OPENED: 1, ReportReason.DUPLICATE_ID: 1}

"""A batch of reports from its bytes.

What protobuf would read, in a few times the memory of the bytes at most.
"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adserver.ingest.batch import LEAST_REPORT_BYTES, reports_in
from adserver.ingest.http_app import MAX_BATCH_BYTES
from maskedlark.errors import ReportReason, ReportRejected
from protos import report_pb2

_REPORT = report_pb2.Report(
    task_id=bytes(32),
    report_id=bytes(16),
    time_bucket=7,
    share_0=report_pb2.SealedShare(key_id=1, ciphertext=bytes(80)),
    share_1=report_pb2.SealedShare(key_id=2, ciphertext=bytes(200)),
)
_WHOLE = report_pb2.ReportBatch(reports=[_REPORT] * 3).SerializeToString()


@given(st.lists(st.binary(min_size=LEAST_REPORT_BYTES, max_size=400), max_size=20))
def test_the_reports_are_those_of_the_message(ciphertexts: list[bytes]) -> None:
    batch = report_pb2.ReportBatch()
    for ciphertext in ciphertexts:
        batch.reports.add(report_id=ciphertext[:16]).share_0.ciphertext = ciphertext
    assert list(reports_in(batch.SerializeToString())) == list(batch.reports)


def refused(body: bytes) -> bool:
    with pytest.raises(ReportRejected) as rejected:
        reports_in(body)  # before the first report is asked for
    return rejected.value.reason is ReportReason.MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        _WHOLE[:-1],
        _WHOLE + b"\x0a",
        _WHOLE + b"\x0a\xff\xff\xff\xff\x0f",
        _WHOLE + b"\x0a\x02\xff\xff",
        _WHOLE + b"\x12\x00",
        b"\x0a" + b"\xff" * 20,
        b"\x80" * 11,
    ],
)
def test_what_is_no_batch_is_refused_as_a_whole(body: bytes) -> None:
    assert refused(body)


def test_a_body_holds_no_more_reports_than_there_is_memory_for() -> None:
    assert len(_REPORT.SerializeToString()) > LEAST_REPORT_BYTES >= 64


def test_a_few_empty_reports_are_read_and_a_body_full_of_them_is_refused_for_no_more_memory_than_it_has() -> (
    None
):
    assert len(list(reports_in(_WHOLE + b"\x0a\x00"))) == 4
    hostile = b"\x0a\x00" * (MAX_BATCH_BYTES // 2)
    tracemalloc.start()
    assert refused(hostile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_BATCH_BYTES


@given(st.binary(max_size=300))
def test_no_bytes_are_worse_than_refused(body: bytes) -> None:
    try:
        found = list(reports_in(body))
    except ReportRejected:
        return
    assert len(found) <= len(body) // LEAST_REPORT_BYTES + 1

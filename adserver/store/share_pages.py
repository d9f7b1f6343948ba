"""Sealed shares as tables keep them, and as they are sent to a helper: in pages, in order of arrival."""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Engine, Table, bindparam, select

from maskedlark.reports.dataset import ShareColumns
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import reading

MAX_PAGE_ROWS: Final = 1_000


def report_row(report: Report) -> dict[str, Any]:
    """Return the row that stores a report, or an update, as it came in."""
    row: dict[str, Any] = {
        "report_id": report.report_id, "time_bucket": report.time_bucket, "digest": report.digest
    }  # fmt: skip
    for role, share in enumerate(report.shares):
        row |= {f"key_id_{role}": share.key_id, f"ciphertext_{role}": share.ciphertext}
    return row


def share_pages(
    engine: Engine,
    table: Table,
    chosen: ColumnElement[bool],
    sequence: Column[int],
    *,
    role: int,
    page_rows: int,
    ciphertext: ColumnElement[bytes] | None = None,
) -> Iterator[ShareColumns]:
    """Yield one helper's shares of the chosen rows of a table, page after page.

    Args:
        engine: The ad server's database.
        table: Of sealed rows.
        chosen: Which of its rows; it may join another table.
        sequence: The order of arrival, in the table whose index has it.
        role: The helper's.
        page_rows: How many at most.
        ciphertext: What is read as the ciphertext; by default the column of the role.

    Guarantees: holds one page in memory, and no lock.
    """
    c = table.c
    found = c[f"ciphertext_{role}"] if ciphertext is None else ciphertext
    query = select(sequence, c.report_id, c.time_bucket, c[f"key_id_{role}"], found)
    query = query.where(chosen, sequence > bindparam("last")).order_by(sequence)
    query = query.limit(max(1, min(MAX_PAGE_ROWS, page_rows)))
    # By the last sequence and not by OFFSET, which reads all rows before a page again; and a transaction for
    # each page, so that none stays open while a helper takes its time.
    last = -1
    while True:
        with reading(engine) as connection:
            rows = connection.execute(query, {"last": last}).all()
        if not rows:
            return
        last = rows[-1][0]
        _, report_ids, time_buckets, key_ids, ciphertexts = zip(*rows, strict=True)
        yield ShareColumns(
            report_ids=report_ids, time_buckets=time_buckets, key_ids=key_ids, ciphertexts=ciphertexts
        )

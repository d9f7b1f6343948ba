"""What the load bench sends is what an intake takes: reports of the task under ids that were never sent."""

import time

from maskedlark.reports.upload import ReportCheck
from maskedlark.rpc.wire import report_from_message
from protos import report_pb2
from tests.bench.intake_site import BATCH, Batches
from tests.builders import world


def test_batches_hold_reports_of_the_task_under_fresh_ids() -> None:
    now = int(time.time())
    task = world(num_features=30, starts_at=now - 86_400, expires_at=now + 86_400).task
    batches, ids = Batches(task), set()
    for _ in range(2):
        for message in report_pb2.ReportBatch.FromString(batches.next()).reports:
            report = report_from_message(message)
            ReportCheck(task).check(report)
            ids.add(report.report_id)
    assert len(ids) == 2 * BATCH

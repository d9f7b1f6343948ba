"""The same report, and the same round, sent far more often than once to real processes.

It counts once, and has one answer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from unittest.mock import MagicMock

import grpc
import pytest

from docs.tutorial.fleet import Fleet
from maskedlark.reports.upload import Report
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from protos import ingest_pb2_grpc
from tests.apart import run_apart
from tests.chaos.books import Books
from tests.e2e import same_epoch, same_round
from tests.e2e.dying_helper import DyingFleet
from tests.patience import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long]
SUBMISSIONS = 1_000
ROUNDS_SENT = 500
KILLS_IN_EPOCHS = 4
"""Before a helper is asked, meanwhile, after, and one more; `make same-round` has twice as many."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DyingFleet]:
    folder = tmp_path_factory.mktemp("again")
    with DyingFleet(folder=folder, is_no_noise=True, helper_options=same_round.OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def task(fleet: Fleet) -> str:
    return same_round.make_task(fleet, "at once")


def stored(fleet: Fleet, report: Report) -> int:
    return int(
        Books(fleet=fleet).rows(
            "adserver", "SELECT count(*) FROM reports WHERE report_id = ?", report.report_id
        )[0][0]
    )


def test_of_a_thousand_submissions_at_once_over_http_one_is_accepted_and_all_others_are_told_the_same(
    fleet: Fleet, task: str
) -> None:
    [report] = same_round.new_reports(fleet, task, 1, "over http")
    content, (host, port) = encode_report(report), fleet.http.rsplit(":", 1)
    head = (
        f"POST /v1/reports HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\nConnection:"
        " close\r\n\r\n"
    )

    async def submit() -> tuple[str, str]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + content)
        said = (await reader.read()).decode()
        writer.close()
        return said.split(" ", 2)[1], said.split("\r\n\r\n")[1]

    async def submit_all() -> list[tuple[str, str]]:
        return await asyncio.gather(*(submit() for _ in range(SUBMISSIONS)))

    answers = Counter(run_apart(submit_all()))
    assert answers == {
        ("201", '{"result":"accepted"}'): 1,
        ("200", '{"result":"duplicate"}'): SUBMISSIONS - 1,
    }
    assert stored(fleet, report) == 1


def test_of_a_thousand_submissions_at_once_over_grpc_one_is_accepted_and_all_others_are_told_the_same(
    fleet: Fleet, task: str
) -> None:
    """A stream for which the server has no room at the moment is refused unread, and sent again."""
    [report] = same_round.new_reports(fleet, task, 1, "over grpc")
    answers: Counter[tuple[int, int, int]] = Counter()
    with make_channel(fleet.grpc, None) as channel:
        submit = ingest_pb2_grpc.IngestStub(channel).Submit
        while missing := SUBMISSIONS - answers.total():
            for call in [
                submit.future(iter([report_to_message(report)]), timeout=HANGS_S) for _ in range(missing)
            ]:
                try:
                    reply = call.result()
                except grpc.RpcError as error:
                    assert error.code() in (  # noqa: PT017
                        grpc.StatusCode.UNAVAILABLE,
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                    ), error
                else:
                    answers[reply.accepted, reply.duplicates, sum(reply.rejected.values())] += 1
    assert answers == {(1, 0, 0): 1, (0, 1, 0): SUBMISSIONS - 1}
    assert stored(fleet, report) == 1


def test_the_same_round_sent_hundreds_of_times_across_crashes_has_one_distinct_answer_and_one_charge(
    fleet: DyingFleet,
) -> None:
    outcome = same_round.run(fleet, ROUNDS_SENT, rounds=1)
    assert outcome.is_right, outcome
    assert outcome.sent == ROUNDS_SENT


def test_callers_of_a_round_ask_on_until_the_helper_has_died_for_the_last_time() -> None:
    helper = MagicMock()
    asking = same_round.Asking(spec=MagicMock(), round_index=0, sent=b"", length=1, left=2, helper=helper)

    def answers(*_: object) -> MagicMock:
        asking.has_died = helper.run_round.call_count == 5
        return MagicMock(encode=lambda: b"the answer")

    helper.run_round.side_effect = answers
    asking.is_up.set()
    asking.ask_on()
    assert list(asking.answers.values()) == [5]
    assert asking.answers.total() + asking.left == 2


def test_everybody_is_in_each_epoch_of_each_job_once_whatever_is_killed(fleet: Fleet) -> None:
    outcome = same_epoch.run(fleet, kills=KILLS_IN_EPOCHS)
    assert outcome.is_right, outcome
    assert outcome.kills == KILLS_IN_EPOCHS

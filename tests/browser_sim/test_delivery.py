from collections import Counter

import pytest

from adserver.quickstart.ports import free_ports
from browser_sim import sealed_batch as sealed_batches
from browser_sim.delivery import Delivered, Sender, _GrpcSender, _HttpSender, connect, deliver
from browser_sim.endpoint import Protection
from browser_sim.sealed_batch import SealedBatch
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.randomness import seeded
from maskedlark.reports.upload import Report
from protos import report_pb2
from tests.browser_sim.sinks import Intake, grpc_sink, http_sink, reports_of
from tests.builders import examples, reports, world

INSECURE = Protection(insecure=True)


@pytest.fixture(scope="module")
def some_reports() -> list[Report]:
    ours = world()
    return reports(ours, examples(ours.task, 7), seeded(1))


@pytest.mark.parametrize("sink", [grpc_sink, http_sink])
def test_reports_arrive_as_they_were_sealed_and_in_order(some_reports: list[Report], sink: object) -> None:
    intake = Intake()
    progress: list[int] = []
    with sink(intake) as address, connect(address, INSECURE) as sender:  # type: ignore[operator]
        delivered = deliver(
            sender, map(SealedBatch.of, (some_reports[:4], some_reports[4:])), on_progress=progress.append
        )
    assert intake.order == some_reports
    assert (delivered.accepted, delivered.duplicates, delivered.resent) == (7, 0, 0)
    assert progress == [4, 3]


@pytest.mark.parametrize("sink", [grpc_sink, http_sink])
def test_a_batch_whose_answer_is_lost_is_sent_again_and_counts_as_delivered(
    some_reports: list[Report], sink: object
) -> None:
    intake = Intake(lost_answers=2)
    pauses: list[float] = []
    with sink(intake) as address, connect(address, INSECURE) as sender:  # type: ignore[operator]
        delivered = deliver(sender, [SealedBatch.of(some_reports)], pause=pauses.append)
    assert intake.order == some_reports
    assert (delivered.accepted, delivered.duplicates, delivered.delivered, delivered.resent) == (0, 7, 7, 1)
    assert len(pauses) == 2
    assert (
        0.125 <= pauses[0] <= 0.25 <= pauses[1] <= 0.5
    )  # with jitter: browsers that were turned away do not come back as one


@pytest.mark.parametrize("sink", [grpc_sink, http_sink])
def test_rejections_are_counted_by_reason(some_reports: list[Report], sink: object) -> None:
    with sink(Intake(reject_every=3)) as address, connect(address, INSECURE) as sender:  # type: ignore[operator]
        delivered = deliver(sender, [SealedBatch.of(some_reports)])
    assert delivered.rejected == Counter(outside_task_period=2)
    assert delivered.delivered == 5


def test_an_ad_server_that_stays_away_is_given_up_after_bounded_attempts(some_reports: list[Report]) -> None:
    pauses: list[float] = []
    for address in ("127.0.0.1:1", "http://127.0.0.1:1"):
        with connect(address, INSECURE) as sender, pytest.raises(HelperUnavailable):
            deliver(sender, [SealedBatch.of(some_reports)], pause=pauses.append)
    for pause_s, longest_s in zip(pauses, [0.25, 0.5, 1, 2, 4, 8, 8] * 2, strict=True):
        assert longest_s / 2 <= pause_s <= longest_s


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, JobReason.MALFORMED),
        (401, JobReason.UNAUTHORIZED),
        (403, JobReason.UNAUTHORIZED),
        (413, JobReason.TOO_LARGE),
    ],
)
def test_a_refused_batch_is_not_sent_again(
    some_reports: list[Report], status: int, reason: JobReason
) -> None:
    with (
        http_sink(status=status) as url,
        _HttpSender(url, INSECURE) as sender,
        pytest.raises(JobRefused) as refused,
    ):
        deliver(sender, [SealedBatch.of(some_reports)], pause=lambda _: pytest.fail("sent again"))
    assert refused.value.reason is reason


def test_a_password_in_a_url_is_in_no_message(some_reports: list[Report]) -> None:
    [port] = free_ports(1)
    with (
        _HttpSender(f"http://user:secret@127.0.0.1:{port}", INSECURE) as sender,
        pytest.raises(HelperUnavailable, match=rf"^http://127\.0\.0\.1:{port}/") as unavailable,
    ):
        sender.send(SealedBatch.of(some_reports))
    assert "secret" not in str(unavailable.value)
    for refused in (
        "http://user:secret@ads.example/x",
        "http://user:secret@ads.example/?of=https://b.example",
        "https://user:a/secret@ads.example:8443/",
        "https://user:a://secret@ads.example/",
        "user:secret@",
        "user:secret@ads.example:50051",
    ):
        with pytest.raises(InvalidTask) as plain:
            Protection(insecure=True).check(refused)
        assert "secret" not in str(plain.value)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_ad_server_is_asked_again(some_reports: list[Report], status: int) -> None:
    with (
        http_sink(status=status) as url,
        _HttpSender(url, INSECURE) as sender,
        pytest.raises(HelperUnavailable),
    ):
        sender.send(SealedBatch.of(some_reports))


class Full(Sender):
    """An ad server that is full, and says until when."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = [
            HelperUnavailable("full", retry_after_s=40.0),
            HelperUnavailable("full", retry_after_s=0.0),
        ]

    def send(self, batch: SealedBatch) -> Delivered:
        if self.errors:
            raise self.errors.pop(0)
        return Delivered(accepted=batch.reports)


def test_an_ad_server_that_says_when_to_come_again_is_not_asked_before(some_reports: list[Report]) -> None:
    pauses: list[float] = []
    assert deliver(Full(), [SealedBatch.of(some_reports)], pause=pauses.append).accepted == len(some_reports)
    assert pauses[0] == 40.0
    assert 0 < pauses[1] <= 0.5


def test_an_answer_that_is_not_counts_is_refused(some_reports: list[Report]) -> None:
    with (
        http_sink(status=200) as url,
        _HttpSender(url, INSECURE) as sender,
        pytest.raises(JobRefused) as refused,
    ):
        sender.send(SealedBatch.of(some_reports))
    assert refused.value.reason is JobReason.MALFORMED


@pytest.mark.parametrize(
    ("destination", "instead"), [("127.0.0.1:9", "--tls-ca"), ("http://127.0.0.1:9", "use https")]
)
def test_plaintext_must_be_asked_for(destination: str, instead: str) -> None:
    with pytest.raises(InvalidTask, match=f"{instead}.*--insecure"):
        connect(destination, Protection())


@pytest.mark.parametrize(
    "destination",
    ["ads.example:9", "http://ads.example", "http://127.0.0.1.ads.example/", "http://127.0.0.1@ads.example/"],
)
def test_plaintext_leaves_this_machine_never(destination: str) -> None:
    with pytest.raises(InvalidTask, match="loopback"):
        connect(destination, INSECURE)


@pytest.mark.parametrize("destination", ["", "host", "host:port", ":80", "http://", "ftp://host/"])
def test_an_address_that_is_none_is_refused(destination: str) -> None:
    with pytest.raises(InvalidTask, match="HOST:PORT"):
        connect(destination, INSECURE)


def test_the_kind_of_address_chooses_the_kind_of_upload() -> None:
    with (
        connect("127.0.0.1:1", INSECURE) as over_grpc,
        connect("https://ads.example", Protection()) as over_http,
    ):
        assert isinstance(over_grpc, _GrpcSender)
        assert isinstance(over_http, _HttpSender)


def test_reasons_of_a_newer_ad_server_are_kept_under_other(some_reports: list[Report]) -> None:
    class Newer(Intake):
        def take(self, reports: object) -> object:  # type: ignore[override]
            from protos import ingest_pb2

            return ingest_pb2.SubmitReply(rejected={"one": 1, "two": 2})

    with grpc_sink(Newer()) as address, connect(address, INSECURE) as sender:
        assert sender.send(SealedBatch.of(some_reports)).rejected == Counter(other=3)


@pytest.mark.parametrize("most", [1, 700, 1 << 20])
def test_a_batch_is_sent_whole_in_messages_of_any_size(
    some_reports: list[Report], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_batches, "_MESSAGE_BYTES", most)
    batch = SealedBatch.of(some_reports)
    assert reports_of([batch]) == some_reports
    for message in batch.messages:
        count = len(report_pb2.ReportBatch.FromString(message).reports)
        assert count == 1 or len(message) <= most + 100 * count


def test_receipts_add_up() -> None:
    total = Delivered(accepted=1, rejected=Counter(malformed=1))
    total.add(Delivered(accepted=2, duplicates=3, rejected=Counter(malformed=1, other=1), resent=1))
    assert total == Delivered(accepted=3, duplicates=3, rejected=Counter(malformed=2, other=1), resent=1)

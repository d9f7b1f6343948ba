"""The same report, and the same round, sent far more often than once to real processes: it counts once, and has one answer."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from adserver.helper_client import HelperClient
from docs.tutorial.fleet import HELPERS, ORIGIN, Fleet
from maskedlark.job import JobSpec, sampling_numerator
from maskedlark.model import weights
from maskedlark.model.graph import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.upload import Report, Sealer
from protos import ingest_pb2_grpc
from tests.builders import examples
from tests.chaos.books import Books
from tests.chaos.uploads import Uploads

pytestmark = pytest.mark.slow
SUBMISSIONS = 1_000
ROUNDS_SENT = 10_000
RESTARTS = 5
THREADS = 8


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(folder=tmp_path_factory.mktemp("again"), helper_options=("--release-grid-ms", "0.5")) as running:
        yield running


@pytest.fixture(scope="module")
def task(fleet: Fleet) -> str:
    return fleet.adserver(
        "task", "create", "--name", "again", "--origin", ORIGIN, "--classes", "2", "--num-features", "4",
        "--min-batch-size", "50", "--epsilon", "8", "--collusion-epsilon", "64", "--clip-norm", "1",
    ).strip()  # fmt: skip


def new_reports(fleet: Fleet, task: str, count: int, seed: str) -> list[Report]:
    sealer, randomness = Sealer(Uploads(fleet, task).bundle()), seeded(0, seed)
    return [sealer.report(one, unix_s=time.time(), randomness=randomness) for one in examples(sealer.task, count, randomness)]


def stored(fleet: Fleet, report: Report) -> int:
    return int(Books(fleet=fleet).rows("adserver", "SELECT count(*) FROM reports WHERE report_id = ?", report.report_id)[0][0])


def test_of_a_thousand_submissions_at_once_over_http_one_is_accepted_and_all_others_are_told_the_same(fleet: Fleet, task: str) -> None:
    [report] = new_reports(fleet, task, 1, "over http")

    async def submit() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=120) as browser:
            content, url = encode_report(report), f"http://{fleet.http}/v1/reports"
            answers = await asyncio.gather(*(browser.post(url, content=content) for _ in range(SUBMISSIONS)))
        return [(answer.status_code, answer.text) for answer in answers]

    answers = Counter(asyncio.run(submit()))
    assert answers == {(201, '{"result":"accepted"}'): 1, (200, '{"result":"duplicate"}'): SUBMISSIONS - 1}
    assert stored(fleet, report) == 1


def test_of_a_thousand_submissions_at_once_over_grpc_one_is_accepted_and_all_others_are_told_the_same(fleet: Fleet, task: str) -> None:
    [report] = new_reports(fleet, task, 1, "over grpc")
    with make_channel(fleet.grpc, None) as channel:
        stub = ingest_pb2_grpc.IngestStub(channel)
        calls = [stub.Submit.future(iter([report_to_message(report)]), timeout=120) for _ in range(SUBMISSIONS)]
        answers = Counter((reply.accepted, reply.duplicates, sum(reply.rejected.values())) for reply in (call.result() for call in calls))
    assert answers == {(1, 0, 0): 1, (0, 1, 0): SUBMISSIONS - 1}
    assert stored(fleet, report) == 1


def test_the_same_round_sent_ten_thousand_times_across_crashes_has_one_distinct_answer_and_one_charge(fleet: Fleet, task: str) -> None:
    """With noise, so that a second computation would show; each time the helper is killed as it stands."""
    assert Uploads(fleet, task).send(new_reports(fleet, task, 100, "of a dataset"))
    dataset = fleet.adserver_json("dataset", "seal", "--task", task)
    path = Path(fleet.folder / "model.onnx")
    fleet.run("adserver", "model", "create", str(path), "--layers", "4,1", "--seed", "5")
    model = parse(path.read_bytes(), num_features=4)
    spec = JobSpec(
        job_id=b"sent over, again",
        task_id=bytes.fromhex(task),
        dataset_id=bytes.fromhex(dataset["dataset_id"]),
        model_digest=model.digest,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=2,
        sampling_numerator=sampling_numerator(expected_batch_size=dataset["admitted"], dataset_size=dataset["admitted"]),
        noise_multiplier=5.0,
    )
    sent = weights.encode([weights.quantise(values) for values in model.initial_values])
    with HelperClient((fleet.folder / "helper-0.address").read_text(), None, 30.0) as helper, ThreadPoolExecutor(THREADS) as pool:
        helper.start_job(spec, path.read_bytes())

        def answer(_: int) -> bytes:
            return sha256(helper.run_round(spec.job_id, 0, sent, model.num_parameters).encode()).digest()

        answers: Counter[bytes] = Counter()
        for crashed in range(RESTARTS + 1):
            if crashed:
                fleet.kill(HELPERS[0])
                fleet.start_helper(0)
            answers.update(pool.map(answer, range(-(-ROUNDS_SENT // (RESTARTS + 1)))))
        assert helper.status().rounds_answered == 1
    assert len(answers) == 1
    assert answers.total() >= ROUNDS_SENT

"""Queries and evaluations over the API, from the request to the answer that is kept, by helpers in memory."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from adserver.admin.guarded_route import PREFIX
from adserver.client import Client
from adserver.client.local import LocalAdServer
from adserver.ingest.http_server import HttpServer
from adserver.messages.evaluation import EvaluationMessage
from adserver.messages.query import ResultMessage
from adserver.records.access import GrantKind, Scope
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from tests.adserver.asked_site import CLICKS, Helper, both_helpers
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import OF, SHOP_DATASET, SHOP_OF, Painted, painted
from tests.patience import HANGS_S

DATASET: Final = OF.datasets[0].dataset_id.hex()
NOWHERE: Final = "ff" * 16  # a shorter one may be the start of an id, which is drawn anew in each run


@pytest.fixture(scope="module")
def helpers() -> tuple[Helper, Helper]:
    return both_helpers()


@pytest.fixture(scope="module")
def asked_of(
    tmp_path_factory: pytest.TempPathFactory, helpers: tuple[Helper, Helper]
) -> Iterator[tuple[Painted, str]]:
    with ExitStack() as stack:
        of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
        stack.callback(of.close)
        pair: Any = helpers
        of.client = Client.of(LocalAdServer.over(of.engine, pair, data=of.folder))
        server = HttpServer(stack.enter_context(of.door()), "127.0.0.1:0", None, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        yield of, f"http://127.0.0.1:{server.port}{PREFIX}"


@pytest.fixture
def client(asked_of: tuple[Painted, str]) -> Iterator[httpx.Client]:
    of, url = asked_of
    token = of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=HANGS_S) as made:
        yield made


def test_a_query_is_answered_charged_and_kept(client: httpx.Client, helpers: tuple[Helper, Helper]) -> None:
    told = client.get(f"/budgets/{SHOP_DATASET.hex()}").json()["ad_server"]["spent"]
    body = {"values": ["click"], "group_by": ["place"], "epsilon": 0.5, "dataset": SHOP_DATASET.hex()[:8]}
    answer = client.post("/queries", json=body)
    assert answer.status_code == 201, answer.text
    (first, *others) = answer.json()["rows"]
    assert first["click"]["low"] < CLICKS.sum() < first["click"]["high"]
    assert all(abs(one["click"]["value"]) < CLICKS.sum() / 2 for one in others)
    kept = client.get(f"/queries/{answer.json()['query_id']}").json()
    assert (kept["is_answered"], kept["about"]) == (True, "click by place")
    assert kept["result"]["rows"] == answer.json()["rows"]
    assert client.get(f"/budgets/{SHOP_DATASET.hex()}").json()["ad_server"]["spent"] > told
    assert [one.asked[-1].query_id.hex() for one in helpers] == [kept["query_id"]] * 2


@pytest.mark.parametrize("by", ["model", "nothing", "both"])
def test_an_evaluation_is_of_one_model(client: httpx.Client, helpers: tuple[Helper, Helper], by: str) -> None:
    model = base64.b64encode(ENCODED_MODEL).decode()
    given = {"model": {"model": model}, "nothing": {}, "both": {"model": model, "job": "06"}}[by]
    before = len(helpers[0].asked)
    answer = client.post("/evaluations", json={**given, "epsilon": 0.5, "bins": 10, "dataset": DATASET})
    if by != "model":
        assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")
        assert len(helpers[0].asked) == before
        return
    assert answer.status_code == 201, answer.text
    kept = client.get(f"/evaluations/{answer.json()['query_id']}").json()
    assert kept["is_answered"]
    assert kept["result"]["metrics"] == answer.json()["metrics"]


@pytest.fixture
def far(asked_of: tuple[Painted, str]) -> Iterator[Client]:
    of, url = asked_of
    token = of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with Client(url=url.removesuffix(PREFIX), token=token) as made:
        yield made


def test_a_client_elsewhere_asks_a_query_and_reads_what_the_api_says(
    far: Client, client: httpx.Client
) -> None:
    result = far.aggregate(
        "click",
        "count",
        group_by=["place", "campaign"],
        where={"place": "oslo"},
        domains={"campaign": [3, 7]},
        epsilon=0.5,
        dataset=SHOP_DATASET.hex(),
    )
    assert result.group_by == ("place", "campaign")
    assert [column.name for column in result.columns] == ["click", "count"]
    told = client.get(f"/queries/{result.query_id}").json()["result"]
    assert ResultMessage.of(result).model_dump(mode="json") == told
    assert far.repeat_aggregate(result.query_id) == result
    assert result.to_pandas().shape[0] == len(told["rows"])


def test_a_client_elsewhere_evaluates_a_model(far: Client, client: httpx.Client) -> None:
    result = far.evaluate(ENCODED_MODEL, bins=10, epsilon=0.5, dataset=DATASET)
    told = client.get(f"/evaluations/{result.query_id}").json()["result"]
    assert EvaluationMessage.of(result).model_dump(mode="json") == told
    assert result.was_trained_on  # jobs have, of which file the server cannot know
    assert "a job learned from" in repr(result)
    assert any("Seal another dataset" in line for line in told["warnings"])
    repeated = EvaluationMessage.of(far.repeat_evaluate(result.query_id))
    assert repeated.model_dump_json() == EvaluationMessage.of(result).model_dump_json()  # NaN equals nothing
    assert far.repeat_evaluate("a4" * 16).metric("roc_auc").value > 0.5


def test_an_answer_that_was_not_kept_is_not_asked_for_from_elsewhere(
    far: Client, helpers: tuple[Helper, Helper]
) -> None:
    before = len(helpers[0].asked)
    with pytest.raises(InvalidTask, match="no stored answer"):
        far.repeat_aggregate("a2" * 16)
    with pytest.raises(JobRefused) as refusal:
        far.repeat_aggregate("a4" * 16)  # an evaluation
    assert refusal.value.reason is JobReason.UNKNOWN_QUERY
    assert len(helpers[0].asked) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/datasets", {}),
        ("/queries", {"values": ["click"], "dataset": SHOP_DATASET.hex()}),
        ("/evaluations", {"job": "06", "dataset": DATASET}),
        ("/jobs/plan", {"dataset": DATASET}),
    ],
    ids=["datasets", "queries", "evaluations", "plans"],
)
def test_a_token_that_reads_asks_nothing(
    asked_of: tuple[Painted, str], helpers: tuple[Helper, Helper], path: str, body: dict[str, Any]
) -> None:
    of, url = asked_of
    token, before = of.grant(GrantKind.TOKEN, Scope.READ), len(helpers[0].asked)
    answer = httpx.post(
        f"{url}{path}", json=body, headers={"authorization": f"Bearer {token}"}, timeout=HANGS_S
    )
    assert (answer.status_code, answer.json()["reason"]) == (403, "read_only")
    assert len(helpers[0].asked) == before


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"values": ["nothing"], "dataset": SHOP_DATASET.hex()}, 422, "undeclared"),
        ({"values": ["click"], "dataset": NOWHERE}, 404, "unknown_dataset"),
        ({"values": ["click"], "dataset": DATASET}, 422, "undeclared"),
    ],
    ids=["no such value", "does not know the dataset", "a task that measures nothing"],
)
def test_a_query_that_is_wrong_is_a_problem(
    client: httpx.Client, body: dict[str, Any], status: int, reason: str
) -> None:
    answer = client.post("/queries", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text


def test_a_discovery_whose_query_would_not_fit_is_not_charged(
    client: httpx.Client, helpers: tuple[Helper, Helper]
) -> None:
    asked = [len(one.asked) for one in helpers]
    body = {"values": ["count"], "group_by": ["campaign"], "discover": True, "dataset": SHOP_DATASET.hex()}
    refused = client.post("/queries", json={**body, "epsilon": SHOP_OF.task.epsilon})
    assert refused.json()["reason"] == "budget_exhausted"
    assert "neither was asked: the budgets leave about" in refused.json()["detail"]
    assert [len(one.asked) for one in helpers] == asked
    answer = client.post("/queries", json={**body, "epsilon": 0.3})
    assert answer.status_code == 201, answer.text
    assert 0.28 < answer.json()["epsilon"]["ad_server"] <= 0.3
    assert [len(one.asked) for one in helpers] == [had + 2 for had in asked]

"""The admin API answers what its OpenAPI document says, in pages, and refuses in problem details."""

import base64
import json
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.routing import Route

from adserver.admin.api import OPENAPI_PATH, OPERATIONS
from adserver.admin.guarded_route import PREFIX
from adserver.records.access import Scope
from adserver.records.job_state import JobState
from maskedlark.error_contract import contract
from maskedlark.errors import JobReason
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import OF, SHOP_DATASET

DATASET = OF.datasets[0].dataset_id.hex()
TASK = OF.of.task.task_id.hex()
RUNNING, DONE = "02" * 16, "06" * 16
NOWHERE = "ff" * 16
"""Ids are whole: the start of one may be that of another, drawn anew in each run."""
MODEL = base64.b64encode(ENCODED_MODEL).decode()
SUBMISSION: dict[str, Any] = {
    "model": MODEL,
    "loss": "binary_cross_entropy_with_logits",
    "rounds": 3,
    "noise_multiplier": 60.0,
    "optimizer": {"kind": "adam", "learning_rate": 0.1},
    "dataset": DATASET,
}
LOOKED_AT = {
    "/tasks": "/tasks?limit=1",
    "/tasks/{task}": f"/tasks/{TASK[:10]}",
    "/tasks/{task}/encoder": f"/tasks/{TASK[:10]}/encoder",
    "/datasets": "/datasets?limit=2",
    "/datasets/{dataset}": f"/datasets/{DATASET[:10]}",
    "/intake": "/intake",
    "/budgets": "/budgets",
    "/budgets/{dataset}": f"/budgets/{DATASET}?rounds=5&noise_multiplier=50",
    "/helpers": "/helpers",
    "/jobs": "/jobs?state=running",
    "/jobs/{job}": f"/jobs/{'04' * 16}",
    "/jobs/{job}/rounds": f"/jobs/{RUNNING}/rounds?limit=5",
    "/jobs/{job}/curves": f"/jobs/{RUNNING}/curves?points=10",
    "/queries": "/queries",
    "/queries/{query}": "/queries/a1",
    "/evaluations": "/evaluations",
    "/evaluations/{evaluation}": "/evaluations/a4",
}


def test_every_route_of_the_api_is_in_its_document(behind: Any, reader: httpx.Client) -> None:
    document = reader.get(f"{PREFIX}/openapi.json").json()
    served = {
        (method, route.path)
        for route in behind.door.app.routes
        if isinstance(route, Route) and route.path.startswith("/api/") and route.path != OPENAPI_PATH
        for method in route.methods or ()
    }
    described = {(method.upper(), path) for path, one in document["paths"].items() for method in one}
    assert served == described


def test_the_document_is_whole(behind: Any) -> None:
    document = behind.door.app.openapi()
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {one.split('"')[0] for one in references} <= document["components"]["schemas"].keys()
    for path in document["paths"].values():
        for one in path.values():
            for response in one["responses"].values():
                for content in response["content"].values():
                    jsonschema.Draft202012Validator.check_schema(content["schema"])


def check_described(behind: Any, method: str, path: str, answer: httpx.Response) -> None:
    """A good answer is as the document says."""
    document = behind.door.app.openapi()
    described = document["paths"][f"{PREFIX}{path}"][method.lower()]["responses"][str(answer.status_code)]
    schema = described["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


@pytest.mark.parametrize("path", LOOKED_AT)
def test_what_is_looked_at_is_as_the_document_says(behind: Any, reader: httpx.Client, path: str) -> None:
    answer = reader.get(f"{PREFIX}{LOOKED_AT[path]}")
    assert answer.status_code == 200, answer.text
    check_described(behind, "GET", path, answer)


def test_every_operation_that_looks_is_looked_at() -> None:
    elsewhere = {"/jobs/{job}/model", "/tokens", "/audit-log", "/tasks/{task}/statements"}
    assert LOOKED_AT.keys() | elsewhere == {
        one.path.removeprefix(PREFIX) for one in OPERATIONS if "GET" in one.methods
    }


def test_pages_hold_everything_once_the_newest_first(reader: httpx.Client) -> None:
    seen, after = [], ""
    while True:
        page = reader.get(f"{PREFIX}/jobs", params={"limit": 2, "after": after}).json()
        seen += [one["job_id"] for one in page["items"]]
        assert len(page["items"]) <= 2
        after = page["next"]
        if after is None:
            break
    painted = [one for one in seen if len(set(one)) <= 2]
    assert painted == [f"{number:02x}" * 16 for number in range(1, 7)]
    assert len(seen) == len(set(seen))


def test_rounds_go_on_where_a_page_ended(reader: httpx.Client) -> None:
    seen, after = [], -1
    while after is not None:
        page = reader.get(
            f"{PREFIX}/jobs/{RUNNING}/rounds", params={"limit": 10, "after_rounds": after}
        ).json()
        seen += [one["rounds_done"] for one in page["items"]]
        after = page["next_after_rounds"]
    assert seen == list(range(38))


def test_a_curve_has_a_bounded_number_of_points_and_the_last_one(reader: httpx.Client) -> None:
    points = reader.get(f"{PREFIX}/jobs/{DONE}/curves", params={"points": 5}).json()["points"]
    assert len(points) <= 12
    assert points[0]["rounds_done"] == 0
    assert points[-1]["rounds_done"] == 40


def test_a_job_is_planned_submitted_and_cancelled(behind: Any, operator: httpx.Client) -> None:
    plan = operator.post(
        f"{PREFIX}/jobs/plan",
        json={"model": MODEL, "rounds": 3, "batch_size": 40, "dataset": DATASET},
    )
    assert plan.status_code == 200, plan.text
    assert plan.json()["recommended"]["rounds"] == 3
    made = operator.post(f"{PREFIX}/jobs", json=SUBMISSION)
    assert made.status_code == 201, made.text
    job = made.json()
    assert (job["state"], job["can"], job["rounds"]) == ("queued", ["cancel"], 3)
    assert behind.of.jobs.find(job["job_id"]).plan.optimizer.learning_rate == 0.1
    cancelled = operator.post(f"{PREFIX}/jobs/{job['job_id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    again = operator.post(f"{PREFIX}/jobs/{job['job_id']}/cancel")
    assert (again.status_code, again.json()["reason"]) == (409, "wrong_state")


def test_a_job_is_until_its_budget_only_where_the_request_says_so(operator: httpx.Client) -> None:
    without = {name: value for name, value in SUBMISSION.items() if name != "rounds"}
    for changes in ({}, {"is_until_budget": True}):
        made = operator.post(f"{PREFIX}/jobs", json={**without, "noise_multiplier": 1e4, **changes})
        assert made.status_code == 201, made.text
        job = made.json()
        assert job["is_until_budget"] == bool(changes)
        assert (job["rounds"] == 120) != job["is_until_budget"]
        operator.post(f"{PREFIX}/jobs/{job['job_id']}/cancel")


def test_a_refused_job_is_resumed(behind: Any, operator: httpx.Client) -> None:
    job_id = behind.of.job(9, JobState.FAILED, rounds=9, done=2, reason="internal_error", cause="a bug").hex()
    shown = operator.get(f"{PREFIX}/jobs/{job_id}").json()
    assert (shown["can"], shown["next_command"]) == (
        ["cancel", "resume"],
        f"adserver job resume {job_id[:12]}",
    )
    assert operator.post(f"{PREFIX}/jobs/{job_id}/resume").json()["state"] == "queued"


def test_a_job_that_would_stop_again_is_to_be_cancelled(behind: Any, operator: httpx.Client) -> None:
    stop = {"reason": "budget_exhausted", "cause": "nothing is left"}
    job_id = behind.of.job(10, JobState.REFUSED, rounds=9, done=2, **stop).hex()
    shown = operator.get(f"{PREFIX}/jobs/{job_id}").json()
    assert shown["next_command"] == f"adserver job cancel {job_id[:12]}"


def test_a_kept_answer_is_shown_with_intervals_and_asks_no_helper(reader: httpx.Client) -> None:
    result = reader.get(f"{PREFIX}/queries/a1").json()["result"]
    assert result["dataset_id"] == SHOP_DATASET.hex()
    for row in result["rows"]:
        for column in result["columns"]:
            one = row[column["name"]]
            assert one["low"] < one["value"] < one["high"]
    assert reader.get(f"{PREFIX}/queries/a2").json()["result"] is None
    metrics = reader.get(f"{PREFIX}/evaluations/a4").json()["result"]["metrics"]
    assert 0.5 < metrics["roc_auc"]["value"] < 1


def test_a_query_is_no_evaluation(reader: httpx.Client) -> None:
    assert reader.get(f"{PREFIX}/evaluations/a1").status_code == 404
    assert reader.get(f"{PREFIX}/queries/a4").status_code == 404


def test_a_forecast_says_whether_a_job_fits(reader: httpx.Client) -> None:
    def fits(noise: float) -> bool:
        asked = {"rounds": 50, "noise_multiplier": noise}
        planned = reader.get(f"{PREFIX}/budgets/{DATASET}", params=asked).json()["planned"]
        return bool(planned["fits"])

    assert (fits(1.0), fits(200.0)) == (False, True)


def test_labels_cost_more_than_what_is_held_where_they_are_asked_for(reader: httpx.Client) -> None:
    asked = {"relation": "label"}
    shown = reader.get(f"{PREFIX}/budgets/{DATASET}", params=asked).json()
    assert shown["labels"]["ad_server"] > shown["ad_server"]["held"] > 0
    assert shown["labels"]["colluding"] > shown["colluding"]["held"] > 0
    assert reader.get(f"{PREFIX}/budgets/{DATASET}").json()["labels"] is None
    assert reader.get(f"{PREFIX}/budgets/{DATASET}", params={"relation": "x"}).status_code == 422


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        (f"/jobs/{NOWHERE}", 404, "unknown_job"),
        ("/jobs/zz", 404, "unknown_job"),
        (f"/tasks/{NOWHERE}", 404, "unknown_task"),
        (f"/datasets/{NOWHERE}", 404, "unknown_dataset"),
        (f"/budgets/{NOWHERE}", 404, "unknown_dataset"),
        (f"/queries/{NOWHERE}", 404, "unknown_query"),
        ("/jobs?limit=0", 422, "invalid_task"),
        ("/jobs?limit=many", 422, "invalid_task"),
        ("/jobs?limit=100000", 422, "invalid_task"),
        ("/jobs?after=nonsense", 422, "invalid_task"),
        ("/jobs?state=gone", 422, "invalid_task"),
        ("/jobs?colour=red", 422, "invalid_task"),
        ("/nowhere", 404, "not_found"),
    ],
)
def test_a_refusal_is_a_problem_with_the_known_words(
    reader: httpx.Client, asked: str, status: int, reason: str
) -> None:
    answer = reader.get(f"{PREFIX}{asked}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    told = answer.json()
    assert (told["status"], told["reason"]) == (status, reason)
    assert told["type"] == f"urn:maskedlark:problem:{told['error']}:{reason}"
    assert told["detail"]
    if told["error"] == "JobRefused":
        assert told["remedy"] == contract(JobReason(reason)).remedy


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"loss": "none"}, 422, "unknown_loss"),
        ({"model": base64.b64encode(b"no model").decode()}, 422, "not_onnx"),
        ({"rounds": 0}, 422, "invalid_task"),
        ({"is_until_budget": True}, 422, "invalid_task"),
        ({"is_until_budget": True, "rounds": None, "noise_multiplier": None}, 422, "noise_out_of_range"),
        ({"extra": 1}, 422, "invalid_task"),
        ({"noise_multiplier": 0.5, "rounds": 500}, 409, "budget_exhausted"),
        ({"dataset": NOWHERE}, 404, "unknown_dataset"),
        ({"optimizer": {"kind": "adam", "learning_rate": -1}}, 422, "invalid_task"),
    ],
    ids=str,
)
def test_a_submission_that_is_wrong_is_refused_and_stores_nothing(
    behind: Any, operator: httpx.Client, changes: dict[str, Any], status: int, reason: str
) -> None:
    before = sum(behind.of.jobs.counts().values())
    answer = operator.post(f"{PREFIX}/jobs", json={**SUBMISSION, **changes})
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
    assert sum(behind.of.jobs.counts().values()) == before


def test_a_body_that_is_no_json_is_a_problem(operator: httpx.Client) -> None:
    answer = operator.post(f"{PREFIX}/jobs", content=b"\xff")
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")


def test_nothing_that_is_shown_says_when_a_report_came_or_from_where(behind: Any) -> None:
    words = ("arriv", "received_at", "remote", "client_ip", "user-agent", "referer", "report_id")
    with behind.client(Scope.READ) as client:
        shown = [client.get(f"{PREFIX}{path}").text.lower() for path in LOOKED_AT.values()]
        shown += [client.get(path).text.lower() for path in ("/", "/intake", "/tasks", "/datasets")]
    for text in shown:
        assert not [word for word in words if word in text]

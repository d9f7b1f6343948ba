"""What is posted, whatever it is, is refused as a problem: it is no error of the server, and does nothing.

Every operation that takes a body is taken from the list of operations, so that a new one is tried too.
"""

import base64
import json
import re
from typing import Any, Final

import httpx
import pytest

from adserver.admin.api import OPERATIONS
from adserver.admin.guarded_route import PREFIX, GuardedRoute
from adserver.messages.federated import SubmitFederatedJob
from adserver.records.access import GrantKind, Scope
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from tests.adserver.admin.test_asking import DATASET
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import SHOP_DATASET
from tests.patience import HANGS_S

POSTED: Final = [one for one in OPERATIONS if one.bodies]
CHANGING: Final = [one for one in OPERATIONS if "POST" in one.methods]
MODEL: Final = base64.b64encode(ENCODED_MODEL).decode()
TASK: Final[dict[str, Any]] = {
    "name": "a", "origin": "https://a.example", "min_batch_size": 9, "clip_norm": 1.0, "epsilon": 1.0,
    "num_features": 3, "labels": {"kind": "classes", "size": 2},
}  # fmt: skip
FEDERATED: Final[dict[str, Any]] = {"kind": "dp-fedavg", "widths": [3, 2], "window_s": 0.0, "task": "ff" * 32}
GOOD: Final[dict[str, dict[str, Any]]] = {
    "/queries": {"values": ["click"], "group_by": ["place"], "dataset": SHOP_DATASET.hex()},
    "/evaluations": {"model": MODEL, "dataset": DATASET},
    "/datasets": {"task": "ff" * 32},
    "/tasks": TASK,
    "/jobs": {
        "model": MODEL,
        "loss": "binary_cross_entropy_with_logits",
        "optimizer": {"learning_rate": 0.1},
        "rounds": 3,
        "noise_multiplier": 0.01,
        "dataset": DATASET,
    },
    "/jobs/federated": FEDERATED,
    "/jobs/federated/plan": FEDERATED,
    "/jobs/{job}/calibration": {"evaluation": "ff" * 16},
    "/tokens": {"scope": "tokens", "name": "a", "days": 0.01},
    "/jobs/plan": {"model": "AAAA", "rounds": 3, "dataset": DATASET},
}
"""What each operation takes, but for something at its end that is refused: nothing is done here."""
WITHOUT_HELPERS: Final[dict[str, Any]] = {
    "kind": "line",
    "settings": {
        "rounds": 2,
        "devices": 3,
        "bound": {"clip_norm": 1.0},
        "local": {"epochs": 1, "batch_size": 2, "learning_rate": 0.5},
    },
    "widths": [4, 2],
    "is_without_helpers": True,
}
DRAWS: Final[dict[str, Any]] = {
    "kind": "draw-and-discard",
    "settings": {"instances": 4, "learning_rate": 0.01, "epsilon": 0.5},
    "widths": [4, 2],
    "is_without_helpers": True,
}
HOSTILE: Final[list[Any]] = [
    None, True, -1, 0, 10**400, -(10**30), 1 << 63, 1e308, "NaN", "", "\0", "\u0663", "ff" * 40, "x" * 70_000,
    [], [[]], [None], {}, {"": {}}, {"first": -1, "last": 1 << 64}, {"a": {"first": 0, "last": 1 << 31}},
    {"place": [10**400]}, {"place": ["x"] * 5_000}, {"place": -5}, {"place": "9" * 5_000},
    {"campaign": "9" * 5_000}, {"campaign": ["9" * 5_000]}, "-Infinity",
]  # fmt: skip
NEEDED: Final = {"/tasks": Scope.TASKS, "/tokens": Scope.TOKENS, "/tokens/{token}/revoke": Scope.TOKENS}
REFUSED: Final = (404, 409, 422, 503)


class Refusing:
    """A helper that has no budget left for anything."""

    def status(self) -> None:
        raise InvalidTask("no task is wanted")

    def run_query(self, *_: object, **__: object) -> None:
        raise JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")

    def close_lost_job(self, *_: object) -> None:
        raise JobRefused(JobReason.UNKNOWN_JOB, "not started here")


@pytest.fixture(autouse=True)
def _refusing(behind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind.of.client.server, "_helpers", (Refusing(), Refusing()))


def sent(one: GuardedRoute, field: str, value: Any) -> str:
    """A good body with another value in one field; some values are no JSON."""
    text = json.dumps({**GOOD[path_of(one)], field: value})
    return text.replace('"NaN"', "NaN").replace('"-Infinity"', "-Infinity")


def path_of(one: GuardedRoute) -> str:
    return one.path.removeprefix(PREFIX)


def fields_of(one: GuardedRoute) -> list[str]:
    (body,) = one.bodies.values()
    return sorted(body.model_fields)


def test_each_operation_that_takes_a_body_is_tried() -> None:
    assert {path_of(one) for one in POSTED} == set(GOOD)


@pytest.mark.parametrize("one", POSTED, ids=lambda one: one.path)
def test_no_value_of_a_field_is_an_error_of_the_server(
    operator: httpx.Client, behind: Any, one: GuardedRoute
) -> None:
    token = behind.of.grant(GrantKind.TOKEN, Scope.TOKENS)
    found: dict[tuple[str, int], int] = {}
    for field in fields_of(one):
        for number, value in enumerate(HOSTILE):
            answer = operator.post(
                one.path,
                content=sent(one, field, value),
                headers={"authorization": f"Bearer {token}"},
                timeout=HANGS_S,
            )
            found[field, number] = answer.status_code
            assert token not in answer.text
            assert len(answer.text) < 100_000
    assert {at: status for at, status in found.items() if status not in REFUSED} == {}


@pytest.mark.parametrize("job", [WITHOUT_HELPERS, DRAWS], ids=lambda job: job["kind"])
def test_no_value_of_a_job_without_helpers_is_an_error_of_the_server(
    operator: httpx.Client, job: dict[str, Any]
) -> None:
    """Its plan spends and stores nothing, so good values are answered too."""
    tried = [
        *({field: value} for field in SubmitFederatedJob.model_fields for value in HOSTILE),
        *({"settings": job["settings"] | {field: value}} for field in job["settings"] for value in HOSTILE),
    ]
    found = []
    for changed in tried:
        text = json.dumps(job | changed).replace('"NaN"', "NaN").replace('"-Infinity"', "-Infinity")
        answer = operator.post(f"{PREFIX}/jobs/federated/plan", content=text, timeout=HANGS_S)
        if answer.status_code not in (200, *REFUSED):
            found.append((list(changed), answer.status_code))
    assert operator.post(f"{PREFIX}/jobs/federated/plan", json=job, timeout=HANGS_S).status_code == 200
    assert found == []


@pytest.mark.parametrize("one", POSTED, ids=lambda one: one.path)
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"a"', "\xff", "[" * 50_000, '{"a":' * 50_000, '{"query_id":"\\ud800"}',
     '{"dataset":"a","dataset":"b"}', "{}" + " " * 10_000 + "x"],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_body_is_a_problem(behind: Any, one: GuardedRoute, text: str) -> None:
    with behind.client(Scope.TOKENS) as client:
        answer = client.post(one.path, content=text.encode("latin-1"))
    assert answer.status_code in REFUSED, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("one", POSTED, ids=lambda one: one.path)
def test_more_than_an_operation_takes_is_not_read(behind: Any, one: GuardedRoute) -> None:
    if one.most_bytes > 64 << 20:
        assert path_of(one) in {
            "/jobs/federated",
            "/jobs/federated/plan",
            "/jobs",
            "/jobs/plan",
            "/queries",
            "/evaluations",
            "/jobs/{job}/calibration",
        }
        return
    with behind.client(Scope.TOKENS) as client:
        answer = client.post(one.path, content=b" " * (one.most_bytes + 1))
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")
    assert "over the limit of" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("values", ["click"] * 200), ("histograms", ["purchase"] * 200), ("group_by", ["place"] * 200),
     ("where", {f"k{number}": 1 for number in range(200)}),
     ("domains", {f"k{number}": [1] for number in range(200)})],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_a_query_with_more_parts_than_any_has_is_refused_as_it_is_read(
    operator: httpx.Client, field: str, value: Any
) -> None:
    answer = operator.post(f"{PREFIX}/queries", json={**GOOD["/queries"], field: value})
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")
    assert answer.json()["detail"].startswith(f"{field}: ")


@pytest.mark.parametrize("one", CHANGING, ids=lambda one: one.path)
def test_each_scope_does_what_it_may_and_nothing_else(behind: Any, one: GuardedRoute) -> None:
    path = re.sub("{.*?}", "ff" * 16, one.path)
    assert one.needs is NEEDED.get(path_of(one), Scope.OPERATE)
    for scope in Scope:
        with behind.client(scope) as client:
            answer = client.post(path, content=b"[]")
        if scope.allows(one.needs):
            assert answer.status_code in (404, 422), answer.text
        else:
            told = "read_only" if scope is Scope.READ else "wrong_scope"
            assert (answer.status_code, answer.json()["reason"]) == (403, told)


def test_a_secret_that_is_sent_in_a_wrong_place_comes_back_in_no_answer(behind: Any) -> None:
    secret = behind.of.grant(GrantKind.TOKEN, Scope.TOKENS)
    with behind.client(Scope.TOKENS) as client:
        told = [(path_of(one), {**GOOD[path_of(one)], "token": secret}) for one in POSTED]
        told += [("/queries", {"query_id": secret}), ("/tasks", {**TASK, "salt": secret})]
        answers = [client.post(f"{PREFIX}{path}", json=body) for path, body in told]
        answers += [client.get(f"{PREFIX}/jobs", params={"limit": secret})]
    assert {one.status_code for one in answers} == {422}
    assert not any(secret in one.text for one in answers)

"""Every reason that the ad server can give is in the reference, and says what follows."""

import ast
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from adserver.ingest import http_app as http_app_module
from adserver.ingest import slow_client_limits
from adserver.ingest.http_app import http_app
from adserver.ingest.intake import Intake
from adserver.store import leases as job_leases
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from adserver.training import job_outcome, worker
from adserver.training.job_outcome import outcome_of
from adserver.views.reasons import HTTP_REASONS, JOB_STOPS
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
    ReportReason,
    ReportRejected,
)
from maskedlark.runtime.database import open_database
from tests.apart import run_apart

ERRORS_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize("reason", [*HTTP_REASONS, *JOB_STOPS])
def test_each_is_in_the_reference_with_what_to_do(reason: str) -> None:
    known = {**HTTP_REASONS, **JOB_STOPS}[reason]
    row = next(
        line
        for line in ERRORS_PAGE.read_text().splitlines()
        if line.startswith(f"| `{reason}` | {known.meaning} |")
    )
    assert known.follows.remedy in row


def refused_statuses() -> set[int]:
    """The status of every `HTTPException` and `refusal` that the front door's code holds."""
    found = set[int]()
    for module in (http_app_module, slow_client_limits):
        calls = [
            node
            for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text()))
            if isinstance(node, ast.Call)
        ]
        for status in (
            call.args[0] for call in calls if ast.unparse(call.func) in ("HTTPException", "refusal")
        ):
            if isinstance(status, ast.Constant) and isinstance(status.value, int):
                found.add(status.value)
            elif isinstance(status, ast.Attribute) and ast.unparse(status.value) == "HTTPStatus":
                found.add(HTTPStatus[status.attr])
            elif isinstance(status, ast.Name):
                found.add(getattr(module, status.id))
    return found


def test_every_refusal_over_http_is_known() -> None:
    assert refused_statuses() == {400, 404, 408, 503}
    assert {HTTPStatus(status).name.lower() for status in refused_statuses()} <= HTTP_REASONS.keys()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    return opened


def test_what_the_web_framework_refuses_by_itself_and_bugs_are_known(engine: Engine) -> None:
    tasks = TaskStore(engine)
    app = http_app(Intake(tasks, ReportStore(engine), lambda: 0.0), tasks)

    async def reasons() -> list[str]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answers = [await client.get("/nothing"), await client.delete("/healthz")]
            with engine.begin() as connection:
                connection.exec_driver_sql("DROP TABLE tasks")
            answers.append(await client.get("/healthz"))
        return [str(answer.json()["reason"]) for answer in answers]

    found = run_apart(reasons())
    engine.dispose()
    assert found == ["not_found", "method_not_allowed", "internal"]
    assert HTTP_REASONS.keys() >= set(found)


def test_every_word_of_the_workers_is_known() -> None:
    words = {
        value
        for module in (worker, job_outcome, job_leases)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert words == JOB_STOPS.keys()


ENDS: list[Exception] = [
    HelperUnavailable("away"),
    InvalidTask("wrong"),
    ZeroDivisionError(),
    MaskedLarkError("of a kind that has no reasons"),
    *(InvalidModel(reason, "") for reason in ModelReason),
    *(JobRefused(reason, "") for reason in JobReason),
    *(ReportRejected(reason, "") for reason in ReportReason),
]


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_whatever_stops_a_job_the_reason_is_known(error: Exception) -> None:
    _, stop = outcome_of(error)
    if stop is None:
        assert isinstance(error, JobRefused)
        assert error.reason is JobReason.CANCELLED
    else:
        assert stop.reason in {
            *JOB_STOPS,
            *(one.value for one in JobReason),
            *(one.value for one in ModelReason),
        }

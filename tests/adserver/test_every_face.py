"""Every operation of `AdServer` is offered by each face: commands, `Client`, admin API, and pages.

The table is written by hand. An operation that is added to the protocol alone, or that a face does not reach
by the protocol, fails here.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from starlette.routing import Route

import adserver
from adserver.admin.api import OPERATIONS
from adserver.admin.guarded_route import PREFIX
from adserver.cli.main import COMMANDS
from adserver.client import Client
from adserver.client.ad_server import AdServer
from adserver.client.job import Job
from adserver.client.local import LocalAdServer
from adserver.client.remote import RemoteAdServer
from adserver.dashboard.pages import PAGES
from maskedlark.terminal.lazy_commands import Lazy

ROOT: Final = Path(inspect.getfile(adserver)).parent
CLIENT: Final = ("client", "connection", "job", "measuring", "training")


class Faces(NamedTuple):
    """Where each face offers an operation; empty: nowhere, for a reason of `EXCEPTIONS`."""

    command: str
    client: str
    route: str
    page: str = ""


FACES: Final = {
    "create_task": Faces("task create", "create_task", "POST /tasks"),
    "tasks": Faces("task list", "tasks", "GET /tasks", "/tasks"),
    "task": Faces("task show", "task", "GET /tasks/{task}", "/tasks/{task}"),
    "encoder": Faces("job submit", "train", "GET /tasks/{task}/encoder"),
    "refresh_keys": Faces("task refresh-keys", "refresh_keys", "POST /tasks/refresh-keys"),
    "seal": Faces("dataset seal", "seal", "POST /datasets"),
    "datasets": Faces("dataset list", "datasets", "GET /datasets", "/datasets"),
    "dataset": Faces("aggregate", "dataset", "GET /datasets/{dataset}", "/datasets/{dataset}"),
    "abandon": Faces("dataset abandon", "abandon", "POST /datasets/{dataset}/abandon"),
    "budgets": Faces("budget", "budgets", "GET /budgets/{dataset}", "/budgets"),
    "plan": Faces("job plan", "plan", "POST /jobs/plan", "/plan"),
    "submit": Faces("job submit", "submit", "POST /jobs"),
    "jobs": Faces("job list", "jobs", "GET /jobs", "/jobs"),
    "job": Faces("job show", "job", "GET /jobs/{job}", "/jobs/{job}"),
    "history": Faces("job show", "figures", "GET /jobs/{job}/rounds", "/jobs/{job}"),
    "cancel": Faces("job cancel", "cancel", "POST /jobs/{job}/cancel"),
    "close_lost_job": Faces("job close", "close_lost_job", "POST /lost-jobs/{job}/close"),
    "resume": Faces("job resume", "resume", "POST /jobs/{job}/resume"),
    "export": Faces("model export", "export", "GET /jobs/{job}/model"),
    "calibrate": Faces("model calibrate", "calibrate", "POST /jobs/{job}/calibration"),
    "aggregate": Faces("aggregate", "aggregate", "POST /queries"),
    "evaluate": Faces("evaluate", "evaluate", "POST /evaluations"),
    "repeat_aggregate": Faces("aggregate", "repeat_aggregate", "GET /queries/{query}", "/queries/{query}"),
    "repeat_evaluate": Faces("evaluate", "repeat_evaluate", "GET /evaluations/{evaluation}"),
    "queries": Faces("query list", "queries", "GET /queries", "/queries"),
    "statements": Faces("statement list", "statements", "GET /tasks/{task}/statements"),
    "create_token": Faces("token create", "create_token", "POST /tokens"),
    "tokens": Faces("token list", "tokens", "GET /tokens"),
    "revoke_token": Faces("token revoke", "revoke_token", "POST /tokens/{token}/revoke"),
    "audit_log": Faces("audit list", "audit_log", "GET /audit-log"),
    "intake": Faces("status", "intake", "GET /intake", "/intake"),
    "helpers": Faces("status", "helpers", "GET /helpers", "/helpers"),
}
READS: Final = {
    "tasks", "task", "encoder", "datasets", "dataset", "budgets", "jobs", "job", "history",
    "repeat_aggregate", "repeat_evaluate", "queries", "statements", "tokens", "audit_log", "intake",
    "helpers",
}  # fmt: skip
EXCEPTIONS: Final = {
    ("tokens", "page"): "a page that lists grants would show who has access to each browser that may look",
    ("statements", "page"): "a file for others to verify; each look would take the helpers' accountants",
    ("audit_log", "page"): "as for tokens: it names tokens, and the addresses of those who hold them",
    ("encoder", "page"): "megabytes of words, which browsers are served and a job's model is compared with",
    ("repeat_evaluate", "page"): "the page of queries shows evaluations too",
}


def operations() -> set[str]:
    return {
        name
        for name, _ in inspect.getmembers(AdServer, inspect.isfunction)
        if not name.startswith("_") and name != "close"
    }


def calls(file: Path) -> set[str]:
    """The names of methods that a file calls on something called `server` or `at`, itself or by a `Job`."""
    text = file.read_text()
    found = calls(ROOT / "client" / "job.py") if "adserver.client.job import" in text else set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if name in ("server", "at"):
                found.add(node.func.attr)
    return found


def commands(tree: Mapping[str, Lazy], *above: str) -> Iterator[tuple[str, str]]:
    """Every command's words, and its module."""
    for name, lazy in tree.items():
        if isinstance(lazy.source, str):
            yield " ".join((*above, name)), lazy.source.partition(":")[0]
        else:
            yield from commands(lazy.source, *above, name)


def test_each_operation_has_its_row() -> None:
    assert set(FACES) == operations()
    assert set(EXCEPTIONS) <= {(name, face) for name in FACES for face in Faces._fields}


@pytest.mark.parametrize("name", sorted(operations()))
def test_both_ad_servers_take_what_the_protocol_says(name: str) -> None:
    for kind in (LocalAdServer, RemoteAdServer):
        assert callable(getattr(kind, name))


@pytest.mark.parametrize("name", sorted(operations()))
def test_a_command_calls_it(name: str) -> None:
    module = dict(commands(COMMANDS))[FACES[name].command]
    assert name in calls(Path(inspect.getfile(import_module(module))))


@pytest.mark.parametrize("name", sorted(operations()))
def test_the_client_calls_it(name: str) -> None:
    offered = FACES[name].client
    assert hasattr(Client, offered) or hasattr(Job, offered)
    assert any(name in calls(ROOT / "client" / f"{module}.py") for module in CLIENT)


def without_names(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


def test_each_operation_has_the_route_of_its_row() -> None:
    served = {
        f"{method} {without_names(route.path.removeprefix(PREFIX))}"
        for route in OPERATIONS
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert {without_names(faces.route) for faces in FACES.values()} <= served


def test_each_operation_that_reads_has_the_page_of_its_row() -> None:
    pages = {without_names(page.path) for page in PAGES}
    for name in READS:
        assert (without_names(FACES[name].page) in pages) != ((name, "page") in EXCEPTIONS), name


def test_no_command_goes_past_the_protocol() -> None:
    """Only the servers themselves, and a login link, open a store in a command."""
    opening = {file.stem for file in (ROOT / "cli").glob("*.py") if "adserver.store." in file.read_text()} - {
        "serve",
        "intake",
    }
    allowed = {"access", "dataset", "local"}  # a login link is for this machine; a type; without helpers
    assert opening <= allowed


def test_public_names_are_there_and_listed_for_completion() -> None:
    for module in (adserver, import_module("adserver.client")):
        assert set(module.__all__) <= set(dir(module))
        assert all(callable(getattr(module, name)) for name in module.__all__)

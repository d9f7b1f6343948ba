"""`adserver task`: show, list, refresh-keys; `adserver.cli.task_creation` creates."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import DatabaseOption, DataOption, JsonOption, open_store, peers_of
from adserver.cli.target import Target, place_of
from adserver.views.printing import moment, print_json, print_table
from maskedlark.frozen import frozen
from maskedlark.terminal.options import takes

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from adserver.client.remote import RemoteAdServer
    from adserver.peers.connect import Peers
    from adserver.store.reports import ReportCounts
    from adserver.store.tasks import StoredTask


@frozen
class CountedTask:
    """A task and how many reports it has."""

    stored: "StoredTask"
    counts: "ReportCounts"


@takes(at=place_of)
def show_command(
    *,
    at: Target,
    task: Annotated[
        str, typer.Argument(help="The start of the task's id; may be omitted if there is only one task.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show a task's settings and number of reports."""
    from maskedlark.canonical import encode

    shown = _here(at.opened(), task) if at.far is None else _elsewhere(at.far, task)
    found, counts = shown.stored, asdict(shown.counts)
    task_settings = json.loads(encode(found.bundle.task))
    if as_json:
        print_json(
            {
                "task_id": found.task_id.hex(),
                "created_at": found.created_at,
                "reports": counts,
                "task": task_settings,
            }
        )
        return
    rows = [("task_id", found.task_id.hex()), ("created", moment(found.created_at))]
    rows += [(f"reports {state}", count) for state, count in counts.items()]
    rows += [(f"helper {role}", helper["name"]) for role, helper in enumerate(task_settings.pop("helpers"))]
    rows += [(f"labels.{name}", value) for name, value in task_settings.pop("labels").items()]
    rows += [(name, moment(task_settings.pop(name))) for name in ("starts_at", "expires_at")]
    print_table(("setting", "value"), [*rows, *task_settings.items()])


def _here(engine: "Engine", task: str) -> "CountedTask":
    from adserver.store.reports import ReportStore
    from adserver.store.tasks import TaskStore

    found = TaskStore(engine).find(task)
    return CountedTask(stored=found, counts=ReportStore(engine).counts(found.task_id))


def _elsewhere(far: "RemoteAdServer", task: str) -> "CountedTask":
    from adserver.client.remote_values import counts_from_json, task_from_json

    item = far.task_item(task)
    return CountedTask(stored=task_from_json(item), counts=counts_from_json(item))


@takes(peers=peers_of, without=["round_deadline", "wait"])
def refresh_keys_command(
    *,
    data: DataOption,
    peers: "Peers",
    database: DatabaseOption = None,
) -> None:
    """Fetch the helpers' HPKE keys now. A running server does so every minute."""
    from adserver.collecting.key_refresh import refresh_keys
    from adserver.store.tasks import TaskStore

    engine = open_store(data, database)
    with ExitStack() as stack:
        changed = refresh_keys(TaskStore(engine), peers.open(stack, engine))
    typer.echo(f"refreshed the keys of {changed} tasks")


@takes(at=place_of)
def list_command(*, at: Target, as_json: JsonOption = False) -> None:
    """List all tasks, the oldest first."""
    from adserver.messages.task import TaskSummary
    from adserver.store.reports import ReportStore
    from adserver.store.tasks import TaskStore

    if at.far is None:
        engine = at.opened()
        reports = ReportStore(engine)
        rows = [
            TaskSummary.of(one, reports.counts(one.task_id)).model_dump(mode="json")
            for one in TaskStore(engine).all()
        ]
    else:
        from adserver.client.remote_values import listed_task_from_json

        rows = [asdict(listed_task_from_json(item)) for item in at.far.task_items()]
    if as_json:
        print_json(rows)
    else:
        columns = ("name", "origin", "expires_at", "waiting", "sealed", "dropped", "expired")
        print_table(
            ("task", *columns),
            [
                (
                    row["task_id"][:12],
                    *({**row, "expires_at": moment(row["expires_at"])}[column] for column in columns),
                )
                for row in rows
            ],
        )

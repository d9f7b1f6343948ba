"""`adserver task`: show, list, refresh-keys; `adserver.cli.task_creation` creates."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import connected_server_of, server_of
from adserver.views.printing import print_json, print_table
from maskedlark.terminal.options import takes
from maskedlark.terminal.plural import plural
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer


@takes(server=server_of)
def _show_command(
    *,
    server: "AdServer",
    task: Annotated[
        str, typer.Argument(help="The start of the task's id; may be omitted if there is only one task.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show a task's settings and number of reports."""
    from adserver.views.measurement import measurement_rows
    from maskedlark.canonical import encode

    shown = server.task(task)
    found, counts = shown.stored, asdict(shown.counts)
    # The canonical form, so that what is shown is what both helpers signed
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
    rows = [("task_id", found.task_id.hex()), ("created", format_utc(found.created_at))]
    rows += [(f"reports {state}", count) for state, count in counts.items()]
    # Popped, so that the rest are the settings that have no row of their own
    rows += [(f"helper {role}", helper["name"]) for role, helper in enumerate(task_settings.pop("helpers"))]
    rows += [(f"labels.{name}", value) for name, value in task_settings.pop("labels").items()]
    rows += [(name, format_utc(task_settings.pop(name))) for name in ("starts_at", "expires_at")]
    measurement = found.bundle.task.measurement
    if measurement is not None:
        del task_settings["measurement"]
    print_table(("setting", "value"), [*rows, *task_settings.items(), *measurement_rows(measurement)])


# Keys are there without a computation, and a running server asks again in a minute anyway
@takes(server=connected_server_of, without=["round_deadline", "wait"])
def _refresh_keys_command(*, server: "AdServer") -> None:
    """Fetch the helpers' HPKE keys now. A running server does so every minute."""
    with server:
        changed = server.refresh_keys()
    if changed:
        typer.echo(f"refreshed the keys of {plural(changed, 'task')}")
    else:
        # A helper that is away is only logged, at the server: its tasks keep the keys that they have
        typer.echo(
            "nothing to refresh: every task has the present keys of each helper that answers "
            "(`adserver status` says which do)"
        )


@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List all tasks, the oldest first."""
    from adserver.messages.task import TaskSummary

    rows = [TaskSummary.of(one.stored, one.counts).model_dump(mode="json") for one in server.tasks()]
    if as_json:
        print_json(rows)
    else:
        columns = ("name", "origin", "expires_at", "waiting", "sealed", "dropped", "expired")
        print_table(
            ("task", *columns),
            [
                (
                    row["task_id"][:12],
                    *({**row, "expires_at": format_utc(row["expires_at"])}[column] for column in columns),
                )
                for row in rows
            ],
        )

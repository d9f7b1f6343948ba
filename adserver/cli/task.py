"""`adserver task`: show, list, refresh-keys; `adserver.cli.task_creation` creates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import connected_server_of, server_of
from adserver.views.printing import moment, print_json, print_table
from maskedlark.terminal.options import takes
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from maskedlark.reports.measurement import Key, Measurement, Value

# Of a key's categories or a value's buckets
_MOST_LISTED: Final = 40


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
    rows = [("task_id", found.task_id.hex()), ("created", moment(found.created_at))]
    rows += [(f"reports {state}", count) for state, count in counts.items()]
    # Popped, so that the rest are the settings that have no row of their own
    rows += [(f"helper {role}", helper["name"]) for role, helper in enumerate(task_settings.pop("helpers"))]
    rows += [(f"labels.{name}", value) for name, value in task_settings.pop("labels").items()]
    rows += [(name, moment(task_settings.pop(name))) for name in ("starts_at", "expires_at")]
    measurement = found.bundle.task.measurement
    if measurement is not None:
        del task_settings["measurement"]
    print_table(("setting", "value"), [*rows, *task_settings.items(), *_measurement_rows(measurement)])


def _measurement_rows(measurement: "Measurement | None") -> list[tuple[str, object]]:
    """Return a row for each value and key that a query can name."""
    if measurement is None:
        return []
    rows: list[tuple[str, object]] = [("min_cell_count", measurement.min_cell_count)]
    if measurement.small_cell_delta is not None:
        rows.append(("small_cell_delta", measurement.small_cell_delta))
    rows.append(("value count", "1 in each report"))
    for value in measurement.values:
        clipped = " (numbers outside are clipped)" if value.is_clamped else ""
        buckets = f"; buckets from {_list_first(value.bucket_starts)}" if value.bucket_starts else ""
        parts = f", in parts of 1/{value.parts_per_unit:,}" if value.parts_per_unit > 1 else ""
        rows.append((f"value {_named(value)}", f"{value.low} to {value.high}{parts}{clipped}{buckets}"))
    for key in measurement.keys:
        rows.append((f"key {_named(key)}", _describe_key(key)))
    return rows


def _named(one: "Value | Key") -> str:
    return f"{one.name} ({one.title})" if one.title else one.name


def _describe_key(key: "Key") -> str:
    if key.categories:
        return f"{plural(len(key.categories), 'category', 'categories')}: {_list_first(key.categories)}"
    return "any word or number" if key.size is None else f"numbers 0 to {key.size - 1}"


def _list_first(items: Sequence[object]) -> str:
    listed = ", ".join(map(str, items[:_MOST_LISTED]))
    more = len(items) - _MOST_LISTED
    return f"{listed} and {more:,} more (--json has all)" if more > 0 else listed


# Keys are there without a computation, and a running server asks again in a minute anyway
@takes(server=connected_server_of, without=["round_deadline", "wait"])
def _refresh_keys_command(*, server: "AdServer") -> None:
    """Fetch the helpers' HPKE keys now. A running server does so every minute."""
    with server:
        typer.echo(f"refreshed the keys of {plural(server.refresh_keys(), 'task')}")


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
                    *({**row, "expires_at": moment(row["expires_at"])}[column] for column in columns),
                )
                for row in rows
            ],
        )

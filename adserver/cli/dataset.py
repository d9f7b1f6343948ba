"""`adserver dataset`: seal, list, abandon."""

from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import JsonOption, OneTaskOption, TracesOption
from adserver.cli.target import connected_server_of, server_of, trace
from adserver.views.printing import print_json, print_table, sealing_bars, short
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import option, takes
from maskedlark.terminal.plural import plural
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.store.datasets import Dataset


@takes(server=connected_server_of)
def _seal_command(
    *,
    server: "AdServer",
    task: OneTaskOption = "",
    max_reports: Annotated[int | None, option("Take at most this many reports, oldest first.", min=1)] = None,
    allow_small: Annotated[
        bool,
        option(
            "Seal even if there are fewer reports than the task's min_batch_size: every round will "
            "be only noise.",
            "--allow-small",
        ),
    ] = False,
    traces: TracesOption = Traces.NONE,
    as_json: JsonOption = False,
) -> None:
    """Seal the waiting reports of a task into a dataset at both helpers.

    If a run was interrupted while the helpers committed, run the same command again: it finishes that run
    first.
    """
    from adserver.messages.dataset import DatasetSummary

    with trace(server, "seal dataset", traces), sealing_bars() as show:
        dataset = server.seal(task, max_reports=max_reports, allow_small=allow_small, progress=show)
    if as_json:
        print_json(DatasetSummary.of(dataset))
    else:
        _print(dataset)


@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List all datasets, the oldest first."""
    from adserver.messages.dataset import DatasetSummary

    found = server.datasets()
    if as_json:
        print_json(list(map(DatasetSummary.of, found)))
        return
    tasks = server.tasks() if found else ()
    names = {one.stored.task_id: one.stored.bundle.task.name for one in tasks}
    print_table(
        ("dataset", "task", "task id", "state", "made", "received", "reports"),
        [
            (
                short(one.dataset_id or b""),
                names[one.task_id],
                short(one.task_id),
                one.state.value,
                format_utc(one.created_at),
                one.received,
                one.size,
            )
            for one in found
        ],
    )


@takes(server=server_of)
def _abandon_command(
    *,
    dataset: Annotated[str, typer.Argument(help="The start of the id of a dataset in state committing.")],
    server: "AdServer",
) -> None:
    """Abandon a dataset that a helper refuses to commit, so that its reports wait to be sealed again.

    Reports that the other helper has already committed are used up: it will drop them from the next dataset.
    """
    typer.echo(
        f"{plural(server.abandon(dataset).received, 'report waits', 'reports wait')} to be sealed again"
    )


def _print(dataset: "Dataset") -> None:
    typer.echo(f"dataset {(dataset.dataset_id or b'').hex()}")
    rows: list[tuple[str, int]] = [("received", dataset.received), ("admitted by both helpers", dataset.size)]
    for role, dropped in enumerate(dataset.dropped):
        rows += [
            (f"dropped by helper {role}: {reason.value}", count) for reason, count in sorted(dropped.items())
        ]
    rows.append(("interpreted differently by the two helpers", dataset.view_mismatch))
    print_table(("reports", ""), rows)

"""`adserver dataset`: seal, list, abandon."""

from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.connected_target import anywhere_of
from adserver.cli.options import (
    DatabaseOption,
    DataOption,
    JsonOption,
    OneTaskOption,
    TracesOption,
    open_store,
)
from adserver.cli.target import Target, place_of
from adserver.records.dataset_state import DatasetState
from adserver.views.printing import moment, print_json, print_table, short
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from adserver.cli.connected_target import ConnectedTarget
    from adserver.store.datasets import Dataset


@takes(at=anywhere_of)
def seal_command(
    *,
    at: "ConnectedTarget",
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

    with at.sealing(traces) as client:
        dataset = client.seal(task, max_reports=max_reports, allow_small=allow_small)
    if as_json:
        print_json(DatasetSummary.of(dataset))
    else:
        _print(dataset)


@takes(at=place_of)
def list_command(*, at: Target, as_json: JsonOption = False) -> None:
    """List all datasets, the oldest first."""
    from adserver.messages.dataset import DatasetSummary
    from adserver.store.datasets import DatasetStore

    found = DatasetStore(at.opened()).all() if at.far is None else at.far.datasets()
    if as_json:
        print_json(list(map(DatasetSummary.of, found)))
        return
    print_table(
        ("dataset", "task", "state", "made", "received", "reports"),
        [
            (
                short(one.dataset_id or b""),
                short(one.task_id),
                one.state.value,
                moment(one.created_at),
                one.received,
                one.size,
            )
            for one in found
        ],
    )


def abandon_command(
    data: DataOption,
    dataset: Annotated[str, typer.Argument(help="The start of the id of a dataset in state committing.")],
    database: DatabaseOption = None,
) -> None:
    """Abandon a dataset that a helper refuses to commit, so that its reports wait to be sealed again.

    Reports that the other helper has already committed are used up: it will drop them from the next dataset.
    """
    from adserver.store.datasets import DatasetStore

    store = DatasetStore(open_store(data, database))
    found = store.find(dataset)
    if found.state is DatasetState.COMMITTED:
        raise typer.BadParameter("both helpers have committed this dataset: it cannot be abandoned")
    store.give_back(found)
    typer.echo(f"{found.received} reports wait to be sealed again")


def _print(dataset: "Dataset") -> None:
    typer.echo(f"dataset {(dataset.dataset_id or b'').hex()}")
    rows: list[tuple[str, int]] = [("received", dataset.received), ("admitted by both helpers", dataset.size)]
    for role, dropped in enumerate(dataset.dropped):
        rows += [
            (f"dropped by helper {role}: {reason.value}", count) for reason, count in sorted(dropped.items())
        ]
    rows.append(("interpreted differently by the two helpers", dataset.view_mismatch))
    print_table(("reports", ""), rows)

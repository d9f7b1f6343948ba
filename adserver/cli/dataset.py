"""`adserver dataset`: seal, list, abandon."""

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import (
    DatabaseOption,
    DataOption,
    JsonOption,
    OneTaskOption,
    TracesOption,
    open_store,
    peers_of,
)
from adserver.records.dataset_state import DatasetState
from adserver.views.printing import moment, print_json, print_table, sealing_bars, short
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from adserver.peers.opening import Peers
    from adserver.store.datasets import Dataset


@takes(peers=peers_of)
def seal_command(
    *,
    data: DataOption,
    peers: "Peers",
    task: OneTaskOption = "",
    max_reports: Annotated[int | None, option("Take at most so many, the oldest first.", min=1)] = None,
    allow_small: Annotated[
        bool,
        option(
            "Also seal fewer reports than the task's min_batch_size: every round will be noise.",
            "--allow-small",
        ),
    ] = False,
    database: DatabaseOption = None,
    traces: TracesOption = Traces.NONE,
    as_json: JsonOption = False,
) -> None:
    """Make the waiting reports of a task a dataset at both helpers.

    A run that was interrupted while the helpers committed is finished first: run the same command again.
    """
    from adserver.collecting.sealing import DatasetSealer
    from adserver.store.tasks import TaskStore
    from adserver.views.task import dataset_json
    from maskedlark.observability.tracing import span, tracing

    engine = open_store(data, database)
    found = TaskStore(engine).find(task)
    with ExitStack() as stack:
        stack.enter_context(tracing("adserver", traces))
        stack.enter_context(span("seal dataset"))
        show = stack.enter_context(sealing_bars())
        sealer = DatasetSealer(
            engine=engine,
            helpers=peers.open(stack, engine),
            task=found.bundle.task,
            clock=time.time,
            randomness=os.urandom,
            progress=show,
            backoff=peers.backoff,
        )
        dataset = sealer.seal(max_reports=max_reports, is_small_allowed=allow_small)
    if as_json:
        print_json(dataset_json(dataset))
    else:
        _print(dataset)


def list_command(data: DataOption, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all datasets, the oldest first."""
    from adserver.store.datasets import DatasetStore
    from adserver.views.task import dataset_json

    found = DatasetStore(open_store(data, database)).all()
    if as_json:
        print_json([dataset_json(dataset) for dataset in found])
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
    dataset: Annotated[str, typer.Argument(help="A dataset that is committing, by the start of its id.")],
    database: DatabaseOption = None,
) -> None:
    """Give up a dataset that a helper refuses to commit, and let its reports wait again.

    Reports that the other helper has committed already are used up: it will drop them from the next dataset.
    """
    from adserver.store.datasets import DatasetStore

    store = DatasetStore(open_store(data, database))
    found = store.find(dataset)
    if found.state is DatasetState.COMMITTED:
        raise typer.BadParameter("both helpers have committed this dataset; it stays")
    store.give_back(found)
    typer.echo(f"{found.received} reports wait again")


def _print(dataset: "Dataset") -> None:
    typer.echo(f"dataset {(dataset.dataset_id or b'').hex()}")
    rows: list[tuple[str, int]] = [("received", dataset.received), ("admitted by both helpers", dataset.size)]
    for role, dropped in enumerate(dataset.dropped):
        rows += [
            (f"dropped by helper {role}: {reason.value}", count) for reason, count in sorted(dropped.items())
        ]
    rows.append(("read differently by the two helpers", dataset.view_mismatch))
    print_table(("reports", ""), rows)

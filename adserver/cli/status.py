"""`adserver status` and `adserver query`: helpers and intake, and the queries that were asked."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import connected_server_of, server_of
from adserver.views.printing import print_json, print_table
from maskedlark.escape import escape
from maskedlark.terminal.exit_status import UNAVAILABLE
from maskedlark.terminal.options import takes
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from adserver.client.ad_server import AdServer
    from adserver.records.summaries import HelperSummary, IntakeSummary


# A status is asked for once, and computes nothing: a helper that is away is an answer
@takes(server=connected_server_of, without=["round_deadline", "wait"])
def _status_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """Show whether both helpers are well; with --url, also the intake's counts since the server started.

    Exits with 75 unless both answer and are well: one that refuses calls, as after its ledger was rolled
    back, or whose keys have expired, answers and is not well.
    """
    from adserver.client.local import LocalAdServer

    with server:
        helpers = server.helpers()
        # Only the running server counts, and this machine's is asked through its folder
        intake = None if isinstance(server, LocalAdServer) else server.intake()
    if as_json:
        print_json({"helpers": [asdict(one) for one in helpers], "intake": intake and asdict(intake)})
    else:
        _print_status(helpers, intake)
    if not all(one.is_well for one in helpers):
        raise typer.Exit(UNAVAILABLE)


def _print_status(helpers: "Iterable[HelperSummary]", intake: "IntakeSummary | None") -> None:
    print_table(
        ("helper", "address", "well", "name", "version", "software", "keys until"),
        [
            (
                one.role,
                one.address,
                {True: "yes", False: "no", None: "not asked yet"}[one.is_well],
                one.name or "",
                one.version or "",
                (one.software_digest or "")[:12],
                format_utc(one.keys_not_after) if one.keys_not_after else "",
            )
            for one in helpers
        ],
    )
    for one in helpers:
        if one.cause:
            # A helper's own words may be in it
            typer.echo(escape(one.cause))
    if intake is not None:
        rows = [("accepted", intake.accepted), ("duplicates", intake.duplicates), *intake.rejected.items()]
        print_table((f"reports since {format_utc(intake.since)}", ""), rows)


@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List all queries and evaluations, the oldest first. `adserver aggregate --again` shows an answer."""
    found = server.queries()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(
        ("query", "kind", "dataset", "asked", "answered", "about"),
        [
            (
                one.query_id,
                one.kind,
                one.dataset_id[:12],
                format_utc(one.asked_at),
                "yes" if one.is_answered else "no",
                one.about,
            )
            for one in found
        ],
    )

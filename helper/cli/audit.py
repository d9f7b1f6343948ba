"""`lark-helper audit`: the log of acts at this helper and their actors, from its ledger; it only reads."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from helper.cli.options import DatabaseOption, DataOption, JsonOption, OptionalDataOption
from maskedlark.terminal.audit_commands import (
    ActsOption,
    AfterOption,
    FileArgument,
    FromOption,
    LimitOption,
    OutOption,
    parse_acts,
    print_entries,
    print_verified,
    read_lines,
    write_lines,
)

if TYPE_CHECKING:
    from helper.ledger.audit_report import AuditReport

audit_app = typer.Typer(no_args_is_help=True, help="Show, export and verify the log of who did what.")


@audit_app.command("list")
def _list_command(
    data: DataOption,
    database: DatabaseOption = None,
    limit: LimitOption = 50,
    act: ActsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the newest entries of the audit log, oldest first. Works while the helper serves."""
    acts = parse_acts(act)
    print_entries(_report(data, database).newest(limit, acts), as_json=as_json)


@audit_app.command("export")
def _export_command(
    data: DataOption, database: DatabaseOption = None, first: FromOption = 0, out: OutOption = None
) -> None:
    """Write the audit log as JSON lines, one an entry, for `audit verify` and other programs."""
    write_lines(_report(data, database).lines(first), out)


@audit_app.command("verify")
def _verify_command(
    file: FileArgument = None,
    data: OptionalDataOption = None,
    database: DatabaseOption = None,
    after: AfterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check that no entry was removed, changed, added or moved; print the digest of the newest one.

    Note that digest, on another machine. With --after it shows later that the log still holds what it held,
    and so whether the ledger was restored from a backup.
    """
    if file is None and data is None:
        raise typer.BadParameter("nothing to verify: give --data, or the file of an export")
    lines = read_lines(file) if file is not None else _report(data, database).lines(0)
    print_verified(lines, after=after, as_json=as_json)


def _report(data: "Path | None", database: str | None) -> "AuditReport":
    from helper.ledger.audit_report import AuditReport
    from helper.ledger.budget_report import open_ledger

    return AuditReport(open_ledger(data or Path(), database))

"""`adserver audit`: the log of acts at an ad server, with their actors."""

from collections import deque
from collections.abc import Iterator
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import server_of
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
from maskedlark.terminal.options import takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from maskedlark.audit_log import AuditEntry


@takes(server=server_of)
def _list_command(
    *, server: "AdServer", limit: LimitOption = 50, act: ActsOption = None, as_json: JsonOption = False
) -> None:
    """Show the newest entries of the audit log, oldest first."""
    if acts := parse_acts(act):
        # Over the whole log, which has an entry for each act of a person and none for a round
        asked_for = (one for one in _entries(server, 0) if one.act in acts)
        print_entries(list(deque(asked_for, maxlen=limit)), as_json=as_json)
        return
    # The log is read forwards, by number: the newest entry, which is always there, says where its end begins
    (newest,) = server.audit_log(limit=1, is_newest=True)
    found = _entries(server, max(0, newest.sequence - limit + 1))
    # Cut, since more may have been logged between the two requests
    print_entries(list(islice(found, limit)), as_json=as_json)


@takes(server=server_of)
def _export_command(*, server: "AdServer", first: FromOption = 0, out: OutOption = None) -> None:
    """Write the audit log as JSON lines, one an entry, for `audit verify` and other programs."""
    write_lines((one.encode() for one in _entries(server, first)), out)


@wraps(server_of)
def _server_or_none(**given: Any) -> "AdServer | None":
    """Return as `server_of`, or None where the options name no ad server."""
    # A file is verified without an ad server: on the machine of whoever received it
    return server_of(**given) if given["data"] or given["url"] else None


@takes(server=_server_or_none)
def _verify_command(
    *,
    file: FileArgument = None,
    server: "AdServer | None",
    after: AfterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check that no entry was removed, changed, added or moved; print the digest of the newest one.

    Note that digest, on another machine. With --after it shows later that the log still holds what it held,
    and so whether the database was restored from a backup.
    """
    if file is not None:
        lines = read_lines(file)
    elif server is not None:
        lines = (one.encode() for one in _entries(server, 0))
    else:
        raise typer.BadParameter("nothing to verify: give --data, --url, or the file of an export")
    print_verified(lines, after=after, as_json=as_json)


def _entries(server: "AdServer", first: int) -> "Iterator[AuditEntry]":
    """Yield the entries of an audit log from a number on."""
    after = first - 1
    # Page by page, as the log only grows and may be too long for one answer
    while found := server.audit_log(after=after):
        yield from found
        after = found[-1].sequence

"""What `lark-helper audit` and `adserver audit` share: how a log is printed, exported and verified."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maskedlark.errors import InvalidSetting
from maskedlark.terminal.options import option
from maskedlark.terminal.plural import plural
from maskedlark.terminal.whole_table import print_whole
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from maskedlark.audit_log import AuditAct, AuditEntry

LimitOption = Annotated[int, option("Number of newest entries to show.", "--limit", min=1, max=10_000)]
ActsOption = Annotated[
    list[str] | None,
    option(
        "Show only entries of this act, such as sign_task; repeatable.",
        "--act",
        metavar="ACT",
        show_default="every act",
    ),
]
AfterOption = Annotated[
    str,
    option(
        "Digest of an entry that was noted earlier: refuse a log that does not hold it.", metavar="DIGEST"
    ),
]
FromOption = Annotated[
    int, option("Leave out the entries before this number.", "--from", min=0, metavar="NUMBER")
]
OutOption = Annotated[
    Path | None, option("File to write; it must not exist.", "--out", show_default="standard output")
]
FileArgument = Annotated[
    Path | None,
    typer.Argument(help="An export to verify, without the database.", show_default="the database"),
]
_COLUMNS: Final = ("entry", "when", "act", "outcome", "who", "from", "what")
_ID: Final = re.compile("[0-9a-f]{32}|[0-9a-f]{64}")


def parse_acts(names: list[str] | None) -> "tuple[AuditAct, ...]":
    """Return the acts that a person named; none for every act.

    Raises:
        InvalidSetting: there is no such act.
    """
    from maskedlark.audit_log import AuditAct

    known = {one.value: one for one in AuditAct}
    for name in names or ():
        if name not in known:
            raise InvalidSetting(f"--act {name}: no such act; expected one of {', '.join(sorted(known))}")
    return tuple(known[name] for name in names or ())


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an export.

    Raises:
        InvalidSetting: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            yield from stream
    except IsADirectoryError:
        raise InvalidSetting(f"{path} is a folder: give the file that `audit export` wrote") from None
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror}") from None


def write_lines(lines: Iterable[bytes], out: Path | None) -> None:
    """Write an export, one line an entry.

    Raises:
        InvalidSetting: the file exists, or cannot be written.
    """
    if out is None:
        for line in lines:
            # As bytes, which an entry's digest is of: text mode may change line ends.
            sys.stdout.buffer.write(line + b"\n")
        return
    try:
        # Exclusively: an export that somebody keeps as evidence is never overwritten.
        with out.open("xb") as stream:
            stream.writelines(line + b"\n" for line in lines)
    except FileExistsError:
        raise InvalidSetting(f"{out} exists already: choose another file") from None
    except OSError as error:
        raise InvalidSetting(f"cannot write {out}: {error.strerror}") from None


def print_entries(entries: "Iterable[AuditEntry]", *, as_json: bool) -> None:
    """Print entries as a table, or as one JSON array."""
    if as_json:
        typer.echo(json.dumps([json.loads(one.encode()) for one in entries], indent=2))
        return
    from rich.table import Table

    from maskedlark.terminal.escape import plain

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for one in entries:
        table.add_row(*map(plain, _row(one)))
    print_whole(table)


def print_verified(lines: Iterable[bytes], *, after: str, as_json: bool) -> None:
    """Verify a log, and print that it holds, and the digest to note.

    Args:
        lines: Its entries, in order.
        after: A digest that was noted earlier, in hexadecimal; empty for none.
        as_json: Whether to print for programs.

    Raises:
        InvalidSetting: as `verify_lines`, or the digest is none.
    """
    from maskedlark.audit_log import parse_digest, verify_lines

    verified = verify_lines(lines, after=parse_digest(after) if after else None)
    if as_json:
        found = {"entries": verified.num_entries, "first": verified.first, "head": verified.head.hex()}
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"{plural(verified.num_entries, 'entry', 'entries')}, from number {verified.first}: the chain holds"
    )
    typer.echo(f"head  {verified.head.hex()}")


def _row(entry: "AuditEntry") -> tuple[Any, ...]:
    actor = entry.actor
    who = " ".join(filter(None, (actor.kind.value, actor.name, actor.identity[:12])))
    subject = " ".join(f"{name}={_shorten(value)}" for name, value in entry.subject.items())
    times = f" x {entry.count}" if entry.count > 1 else ""
    return (
        entry.sequence,
        format_utc(entry.at),
        entry.act.value,
        entry.outcome + times,
        who,
        actor.address,
        subject,
    )


def _shorten(value: str) -> str:
    """Return the start of an id or digest, and anything else as it is."""
    return value[:12] if _ID.fullmatch(value) else value

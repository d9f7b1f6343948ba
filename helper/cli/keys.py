"""`lark-helper keys`: look at the HPKE keys, and rotate them while the helper serves."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from helper.cli.options import DatabaseOption
from maskedlark.escape import escape
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.terminal.options import option
from maskedlark.terminal.whole_table import print_whole
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from helper.ledger.ledger import Ledger
    from helper.trust.keys import HelperKeys

_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_COLUMNS: Final = ("key_id", "suite", "state", "active_from", "expires_at")

keys_app = typer.Typer(no_args_is_help=True, help="List and rotate the HPKE keys that browsers seal to.")

DataOption = Annotated[Path, option("Folder of this helper's keys.", "--data", envvar="HELPER_DATA")]
JsonOption = Annotated[bool, option("Print JSON for programs.", "--json", envvar="HELPER_JSON")]


@keys_app.command("list")
def _list_command(data: DataOption, as_json: JsonOption = False) -> None:
    """Show this helper's name and fingerprint, and each HPKE key that it ever had.

    The fingerprint is what `keygen` printed. A key is pending, active or expired.
    """
    from helper.trust.keys import HelperKeys

    _show(HelperKeys.read(data), as_json)


@keys_app.command("wrap")
def _wrap_command(
    *,
    data: DataOption,
    keeper: Annotated[
        str,
        option(
            "What wraps them: pkcs11:token=LABEL;object=LABEL, command, or file for a plain file.",
            "--with",
            metavar="KEEPER",
        ),
    ],
    database: DatabaseOption = None,
) -> None:
    """Encrypt this helper's keys with a key that an HSM or a KMS keeps. See also `certificate wrap`.

    The audit log of its ledger, if there is one yet, names the operator.
    """
    from helper.trust.keys import FILE_NAME, wrap
    from maskedlark.audit_log import AuditAct, Deed
    from maskedlark.runtime.audit_table import local_user

    with _ledger_of(data, database) as ledger:  # first: what cannot be logged is not done
        wrap(data, keeper)
        if ledger is not None:
            ledger.log(Deed(act=AuditAct.WRAP_KEYS, actor=local_user(), subject=(("keeper", keeper),)))
    typer.echo(f"{data / FILE_NAME}: {keeper}")


@keys_app.command("rotate")
def _rotate_command(
    *,
    data: DataOption,
    suite: Annotated[
        HpkeSuite | None,
        option("HPKE suite of the new key; default: the newest key's.", envvar="HELPER_SUITE"),
    ] = None,
    active_in_hours: Annotated[
        float, option("Time for which the new key stays pending.", min=0, max=8_760)
    ] = 0.0,
    overlap_days: Annotated[
        float,
        option(
            "Time after that for which older keys still open reports; reports that wait longer are lost.",
            min=0,
            max=3_650,
        ),
    ] = 30.0,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new HPKE key. A helper that serves from this folder uses it without a restart.

    The audit log of its ledger, if there is one yet, names the operator.
    """
    from helper.trust.key_ring import LIST_LIFE_S
    from helper.trust.keys import HelperKeys, log_keys, rotate
    from maskedlark.runtime.audit_table import local_user

    with _ledger_of(data, database) as ledger:  # first: what cannot be logged is not done
        ring = rotate(
            data,
            now=time.time(),
            suite=suite,
            active_in_s=int(active_in_hours * _HOUR_S),
            overlap_s=int(overlap_days * _DAY_S),
        )
        if ledger is not None:
            log_keys(ledger, ring, local_user())
    if overlap_days * _DAY_S < LIST_LIFE_S:
        active_from = max(ring, key=lambda key: key.key_id).active_from
        ends, cached = active_from + int(overlap_days * _DAY_S), active_from + LIST_LIFE_S
        typer.echo(
            f"warning: older keys open reports until {_moment(ends)}, but browsers that cached them seal to "
            f"them until {_moment(cached)}: such a report that is in no dataset when they end is lost "
            "(unknown_key). --overlap-days 3, and more by the days that reports wait, loses none; 0 is for a "
            "leaked key, which it erases at once",
            err=True,
        )
    _show(HelperKeys.read(data), as_json)


@contextmanager
def _ledger_of(data: Path, database: str | None) -> "Iterator[Ledger | None]":
    """Open the ledger of a data folder for the block; None if it does not exist yet."""
    from helper.ledger.ledger import LEDGER_FILE, Ledger, sqlite_url
    from maskedlark.runtime.database import open_database

    # Keys may be made and rotated before the helper ever served; opening a ledger would create it.
    if database is None and not (data / LEDGER_FILE).is_file():
        yield None
        return
    with closing(Ledger(open_database(database or sqlite_url(data / LEDGER_FILE)))) as ledger:
        yield ledger


def _show(keys: "HelperKeys", as_json: bool) -> None:
    now, fingerprint = time.time(), keys.identity.fingerprint
    rows = [
        (key.key_id, key.suite.value, key.state(now).value, key.active_from, key.expires_at)
        for key in keys.ring()
    ]
    if as_json:
        listed = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        typer.echo(json.dumps({"name": keys.name, "fingerprint": fingerprint, "keys": listed}))
        return
    typer.echo(f"name           {escape(keys.name)}\nfingerprint    {fingerprint}")
    table = Table(*_COLUMNS, box=None, header_style="bold", pad_edge=False)
    for key_id, suite, state, *moments in rows:
        table.add_row(str(key_id), suite, state, *map(_moment, moments))
    print_whole(table)


def _moment(unix_s: int | None) -> str:
    if unix_s is None:
        return ""
    return format_utc(unix_s) if unix_s else "the start"

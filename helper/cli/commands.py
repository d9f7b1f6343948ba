"""`lark-helper keygen`, `status` and `budget`."""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from helper.cli.options import DatabaseOption, DataOption, JsonOption, tls_of
from maskedlark.errors import InvalidSetting
from maskedlark.privacy.relation import Relation
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.terminal.budget_options import (
    PlannedBatch,
    PlannedNoise,
    PlannedRounds,
    RelationOption,
    print_budgets,
    read_planned_job,
)
from maskedlark.terminal.escape import plain
from maskedlark.terminal.exit_status import UNAVAILABLE
from maskedlark.terminal.options import option, takes
from maskedlark.terminal.whole_table import print_whole

if TYPE_CHECKING:
    from maskedlark.rpc.tls_files import TlsFiles


# Commands import what they need when they run: their help appears without it.


def _keygen_command(
    *,
    data: DataOption,
    name: Annotated[
        str, option("Name of the operator, by which tasks name this helper.", envvar="HELPER_NAME")
    ],
    suite: Annotated[
        HpkeSuite, option("HPKE suite with which browsers seal to this helper.", envvar="HELPER_SUITE")
    ] = (HpkeSuite.X25519_AES128GCM),
    host: Annotated[
        list[str] | None,
        option("Also create a TLS key and certificate for this host name or address; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create this helper's keys in --data and print the public ones. Existing keys are never overwritten."""
    from helper.trust.keys import FILE_NAME, HelperKeys
    from maskedlark.canonical import encode
    from maskedlark.rpc.certificates import write_certificate
    from maskedlark.rpc.tls_files import TlsFiles

    # Where there are keys, too, `write` says so
    has_keys = (data / FILE_NAME).exists()
    if host and not has_keys and (there := TlsFiles.in_folder(data).private_key).exists():
        raise InvalidSetting(
            f"{there} exists already: leave out --host to make the helper's own keys alone, or name a new "
            "folder"
        )
    keys = HelperKeys.generate(name=name, suite=suite)
    # First: where there are keys already it refuses, and no certificate is made either.
    path = keys.write(data)
    if host:
        write_certificate(data, name=host[0], hosts=tuple(host), now=datetime.now(UTC))
    if as_json:
        typer.echo(encode(keys.identity).decode())
        return
    typer.echo(f"name           {keys.name}")
    typer.echo(f"verify key     {keys.identity.verify_key.hex()}")
    typer.echo(f"agreement key  {keys.identity.agreement_key.hex()}")
    typer.echo(f"fingerprint    {keys.identity.fingerprint}")
    typer.echo(f"The secrets are in {path}: back it up and keep it secret.")
    if host:
        files = TlsFiles.in_folder(data)
        typer.echo(
            f"Give {files.certificate} to the ad server, and add its certificate to "
            f"{files.trusted_authorities}."
        )


@takes(tls=tls_of)
def _status_command(
    *,
    address: Annotated[str, option("host:port of the helper.", metavar="HOST:PORT")],
    tls: "TlsFiles | None",
    deadline: Annotated[float, option("Seconds to wait for the answer.", min=0.1)] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show whether a running helper is well, its identity, keys and counts.

    Exits with 75 if it does not answer, or is not well.
    """
    from helper.cli.status import WELL, fetch_status

    rows = fetch_status(address, tls, deadline_s=deadline)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        table = Table(show_header=False, title=f"helper at {address}")
        for name, value in rows.items():
            table.add_row(name, plain(value))
        print_whole(table)
    if rows["well"] != WELL:
        raise typer.Exit(UNAVAILABLE)


def _budget_command(
    *,
    data: DataOption,
    database: DatabaseOption = None,
    dataset: Annotated[str, option("Show only datasets whose id starts so.", metavar="ID")] = "",
    rounds: PlannedRounds = 0,
    batch_size: PlannedBatch = None,
    noise_multiplier: PlannedNoise = 1.0,
    relation: RelationOption = Relation.ZERO,
    as_json: JsonOption = False,
) -> None:
    """Show what is spent, reserved and left of each dataset's budgets.

    With a planned job, also what it would bring them to; with --relation label, also the cost of telling one
    real label from another.

    Reads the ledger of --data, also while the helper serves; changes nothing.
    """
    from helper.ledger.budget_report import BudgetReport, open_ledger
    from helper.ledger.witness import FILE_NAME, is_rolled_back
    from maskedlark.releases.budget import DatasetBudget
    from maskedlark.terminal.budget_view import budget_json

    engine = open_ledger(data, database)
    report = BudgetReport(engine)
    planned = read_planned_job(rounds, batch_size, noise_multiplier)
    found = [DatasetBudget.of(one, report.uses(one), planned, relation) for one in report.datasets(dataset)]
    if is_rolled_back(engine, data):
        typer.echo(
            f"warning: the ledger is older than {data / FILE_NAME}: more is spent than is shown; restore the "
            "newest ledger",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps([budget_json(one) for one in found]))
    else:
        print_budgets(found)

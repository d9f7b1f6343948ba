"""`helper keygen`, `serve`, `status` and `budget`."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from helper.datasets.shelves import PREPARED_BYTES
from helper.releases.release_grid import DEFAULT_STEP_MS
from helper.trust.floors import Floors, fingerprint
from helper.trust.keys import HelperKeys
from maskedlark.canonical import encode
from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.observability.tracing import Traces, tracing
from maskedlark.releases.budget import PlannedJob, budget_of
from maskedlark.reports.sealing import HpkeSuite
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.signals import stopped_by_signals
from maskedlark.terminal.budget_view import budget_json, budget_table
from maskedlark.terminal.tls_options import tls_files

_DEFAULTS: Final = Floors()
_FLOORS: Final = "Floors: tasks that ask for less privacy or more memory are refused"
_TLS: Final = "TLS"
_PLANNED: Final = "A planned job"
_WATCHING: Final = "What the operator sees"


DataOption = Annotated[
    Path,
    typer.Option("--data", envvar="HELPER_DATA", help="Folder of this helper's keys, ledger and datasets."),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", envvar="HELPER_INSECURE", rich_help_panel=_TLS, help="No TLS; loopback addresses only."
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", envvar="HELPER_TLS_CERT", rich_help_panel=_TLS, help="PEM: our certificate chain."
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key", envvar="HELPER_TLS_KEY", rich_help_panel=_TLS, help="PEM: the certificate's private key."
    ),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", envvar="HELPER_TLS_CA", rich_help_panel=_TLS, help="PEM: whom we trust to certify peers."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", envvar="HELPER_JSON", help="Print JSON for programs.")]


def keygen_command(
    *,
    data: DataOption,
    name: Annotated[
        str, typer.Option(envvar="HELPER_NAME", help="The operator, as tasks will name this helper.")
    ],
    suite: Annotated[
        HpkeSuite, typer.Option(envvar="HELPER_SUITE", help="What browsers seal to this helper with.")
    ] = (HpkeSuite.X25519_AES128GCM),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Also make a TLS key and certificate for this host name or address; may be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make this helper's keys in --data, and print the public ones. Existing keys are never overwritten."""
    keys = HelperKeys.generate(name=name, suite=suite)
    path = keys.write(data)
    if host:
        write_certificate(data, name=host[0], hosts=tuple(host), now=datetime.now(UTC))
    if as_json:
        typer.echo(encode(keys.identity).decode())
        return
    typer.echo(f"name           {keys.name}")
    typer.echo(f"verify key     {keys.identity.verify_key.hex()}")
    typer.echo(f"agreement key  {keys.identity.agreement_key.hex()}")
    typer.echo(f"fingerprint    {fingerprint(keys.identity)}")
    typer.echo(f"The secrets are in {path}: back it up, and show it to nobody.")
    if host:
        files = TlsFiles.in_folder(data)
        typer.echo(
            f"Give {files.certificate} to the ad server, and add its certificate to "
            f"{files.trusted_authorities}."
        )


def serve_command(
    *,
    data: DataOption,
    listen: Annotated[
        str, typer.Option(envvar="HELPER_LISTEN", metavar="HOST:PORT", help="Where to serve; port 0 for any.")
    ],
    database: Annotated[
        str | None,
        typer.Option(
            envvar="HELPER_DATABASE", help="SQLAlchemy URL of another database than SQLite in --data."
        ),
    ] = None,
    port_file: Annotated[
        Path | None,
        typer.Option(envvar="HELPER_PORT_FILE", help="Write the bound address here once it answers."),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            envvar="HELPER_METRICS_LISTEN",
            metavar="HOST:PORT",
            rich_help_panel=_WATCHING,
            help="Serve /metrics and /healthz here; loopback.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="HELPER_LOG_FORMAT",
            rich_help_panel=_WATCHING,
            help="Log lines for people or for programs.",
        ),
    ] = LogFormat.TEXT,
    traces: Annotated[
        Traces,
        typer.Option(
            envvar="HELPER_TRACES",
            rich_help_panel=_WATCHING,
            help="Where spans go; otlp as OTEL_EXPORTER_OTLP_* says.",
        ),
    ] = Traces.NONE,
    threads: Annotated[
        int, typer.Option(envvar="HELPER_THREADS", min=1, max=1024, help="Calls answered at once.")
    ] = 16,
    opening_workers: Annotated[
        int | None,
        typer.Option(
            envvar="HELPER_OPENING_WORKERS",
            min=1,
            help="Processes that open reports.",
            show_default="one a core",
        ),
    ] = None,
    round_threads: Annotated[
        int | None,
        typer.Option(
            envvar="HELPER_ROUND_THREADS",
            min=1,
            help="Threads that compute one round.",
            show_default="one a core",
        ),
    ] = None,
    max_preparing_bytes: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MAX_PREPARING_BYTES",
            min=1,
            help="Most memory that the reports of all tasks take together while they become datasets; one ad "
            "server gets three quarters.",
        ),
    ] = PREPARED_BYTES,
    release_grid_ms: Annotated[
        float,
        typer.Option(
            envvar="HELPER_RELEASE_GRID_MS",
            min=0.1,
            max=60_000,
            help="Answers to rounds leave a whole number of these milliseconds after their requests, so that "
            "their time tells nothing.",
        ),
    ] = DEFAULT_STEP_MS,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    min_batch_size_floor: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MIN_BATCH_SIZE_FLOOR", min=1, rich_help_panel=_FLOORS, help="Least k of a task."
        ),
    ] = _DEFAULTS.min_batch_size,
    max_epsilon: Annotated[
        float,
        typer.Option(envvar="HELPER_MAX_EPSILON", rich_help_panel=_FLOORS, help="Most epsilon of a dataset."),
    ] = _DEFAULTS.max_epsilon,
    max_collusion_epsilon: Annotated[
        float,
        typer.Option(
            envvar="HELPER_MAX_COLLUSION_EPSILON",
            rich_help_panel=_FLOORS,
            help="Most epsilon if ad server and other helper collude.",
        ),
    ] = _DEFAULTS.max_collusion_epsilon,
    max_delta: Annotated[
        float, typer.Option(envvar="HELPER_MAX_DELTA", rich_help_panel=_FLOORS, help="Most delta of a task.")
    ] = _DEFAULTS.max_delta,
    min_decoys: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MIN_DECOYS",
            min=1,
            rich_help_panel=_FLOORS,
            help="Fewest decoy labels in a report.",
        ),
    ] = _DEFAULTS.min_decoys,
    max_dataset_size: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MAX_DATASET_SIZE",
            min=1,
            rich_help_panel=_FLOORS,
            help="Most reports of a dataset.",
        ),
    ] = _DEFAULTS.max_dataset_size,
    max_dataset_bytes: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MAX_DATASET_BYTES",
            min=1,
            rich_help_panel=_FLOORS,
            help="Most memory of a dataset.",
        ),
    ] = _DEFAULTS.max_dataset_bytes,
    max_round_seconds: Annotated[
        float,
        typer.Option(
            envvar="HELPER_MAX_ROUND_SECONDS",
            min=0.001,
            rich_help_panel=_FLOORS,
            help="Most seconds of one core that one round may take, by estimate.",
        ),
    ] = _DEFAULTS.max_round_seconds,
    max_tasks_per_origin: Annotated[
        int,
        typer.Option(
            envvar="HELPER_MAX_TASKS_PER_ORIGIN",
            min=1,
            rich_help_panel=_FLOORS,
            help="Most tasks that one origin has open.",
        ),
    ] = _DEFAULTS.max_tasks_per_origin,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HELPER_PEERS",
            metavar="FINGERPRINT",
            rich_help_panel=_FLOORS,
            help="Serve tasks only together with the helper of this fingerprint; may be repeated.",
            show_default="any",
        ),
    ] = None,
    allow_split_noise: Annotated[
        bool,
        typer.Option(
            "--allow-split-noise",
            envvar="HELPER_ALLOW_SPLIT_NOISE",
            rich_help_panel=_FLOORS,
            help="Serve tasks whose noise each helper adds half of.",
        ),
    ] = False,
    require_proof: Annotated[
        bool,
        typer.Option(
            "--require-proof",
            envvar="HELPER_REQUIRE_PROOF",
            rich_help_panel=_FLOORS,
            help="Serve only tasks whose reports prove that they count once at most and keep their ranges.",
        ),
    ] = False,
    allow_no_noise: Annotated[
        bool,
        typer.Option(
            "--allow-no-noise",
            envvar="HELPER_ALLOW_NO_NOISE",
            rich_help_panel=_FLOORS,
            help="Debugging on loopback only.",
        ),
    ] = False,
) -> None:
    """Serve the ad server until SIGTERM, then finish what is under way."""
    from helper.serving.server import (
        ServeSettings,
        serve,
    )  # the engines take a second to import: the other commands do without

    configure_logging(log_format)
    floors = Floors(
        min_batch_size=min_batch_size_floor,
        max_epsilon=max_epsilon,
        max_collusion_epsilon=max_collusion_epsilon,
        max_delta=max_delta,
        min_decoys=min_decoys,
        max_dataset_size=max_dataset_size,
        max_dataset_bytes=max_dataset_bytes,
        max_tasks_per_origin=max_tasks_per_origin,
        max_round_seconds=max_round_seconds,
        is_noise_optional=allow_no_noise,
        is_split_noise_allowed=allow_split_noise,
        is_proof_required=require_proof,
        peers=frozenset(one.lower() for one in peer or ()),
    )
    settings = ServeSettings(
        data=data,
        listen=listen,
        tls=tls_files(
            insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
        ),
        floors=floors,
        database=database,
        port_file=port_file,
        threads=threads,
        opening_workers=opening_workers,
        round_threads=round_threads,
        metrics_listen=metrics_listen,
        max_preparing_bytes=max_preparing_bytes,
        release_grid_ms=release_grid_ms,
    )
    with stopped_by_signals() as stop, tracing("helper", traces):
        serve(settings, stop)


def status_command(
    *,
    address: Annotated[
        str, typer.Option(envvar="HELPER_ADDRESS", metavar="HOST:PORT", help="Where the helper serves.")
    ],
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    deadline: Annotated[
        float, typer.Option(envvar="HELPER_DEADLINE", min=0.1, help="Seconds to wait for the answer.")
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show who a running helper is and what it holds."""
    from helper.cli.status import fetch_status

    tls = tls_files(insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca)
    rows = fetch_status(address, tls, deadline_s=deadline)
    if as_json:
        typer.echo(json.dumps({row.name: row.value for row in rows}))
        return
    table = Table(show_header=False, title=f"helper at {address}")
    for row in rows:
        table.add_row(row.name, str(row.value))
    Console().print(table)


def budget_command(
    *,
    data: DataOption,
    database: Annotated[
        str | None,
        typer.Option(
            envvar="HELPER_DATABASE", help="SQLAlchemy URL of another database than SQLite in --data."
        ),
    ] = None,
    dataset: Annotated[str, typer.Option(metavar="ID", help="Only datasets whose ids start so.")] = "",
    rounds: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, rich_help_panel=_PLANNED, help="Its rounds; 0 for no planned job."
        ),
    ] = 0,
    batch_size: Annotated[
        float | None,
        typer.Option(rich_help_panel=_PLANNED, help="Its expected batch.", show_default="the whole dataset"),
    ] = None,
    noise_multiplier: Annotated[
        float, typer.Option(rich_help_panel=_PLANNED, help="Its noise over the clip norm.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Show what is spent, reserved and left of each dataset's budgets.

    With a planned job, also what it would bring them to.

    Reads the ledger of --data, also while the helper serves; changes nothing.
    """
    from helper.ledger.budget_report import BudgetReport, open_ledger

    report = BudgetReport(open_ledger(data, database))
    planned = (
        PlannedJob(
            rounds=rounds,
            batch_size=batch_size,
            noise_multiplier=noise_multiplier,
            is_allocated=True,
        )
        if rounds
        else None
    )
    found = [budget_of(one, report.uses(one), planned) for one in report.datasets(dataset)]
    if as_json:
        typer.echo(json.dumps([budget_json(one) for one in found]))
    elif not found:
        typer.echo("no dataset is committed yet")
    for one in [] if as_json else found:
        Console().print(budget_table(one))

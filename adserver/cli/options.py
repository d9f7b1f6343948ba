"""The options that several commands share, each also an environment variable, and what they open."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Engine

from adserver.peers.client import ROUND_DEADLINE_S
from adserver.peers.opening import Peers
from adserver.store.database import create_tables, default_url
from maskedlark.observability.tracing import Traces
from maskedlark.rpc.transport import Keepalive
from maskedlark.runtime.database import open_database
from maskedlark.terminal.tls_options import tls_files

_STORE = "Where things are kept"
_PEERS = "Helpers and TLS"
WATCHING = "What the operator sees"

DataOption = Annotated[
    Path,
    typer.Option(
        "--data", envvar="ADSERVER_DATA", rich_help_panel=_STORE, help="Folder of the ad server's own files."
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="ADSERVER_DATABASE",
        rich_help_panel=_STORE,
        help="SQLAlchemy URL of another database than SQLite in --data.",
    ),
]
Helper0Option = Annotated[
    str,
    typer.Option(
        "--helper-0",
        envvar="ADSERVER_HELPER_0",
        rich_help_panel=_PEERS,
        metavar="HOST:PORT",
        help="The helper of role 0.",
    ),
]
Helper1Option = Annotated[
    str,
    typer.Option(
        "--helper-1",
        envvar="ADSERVER_HELPER_1",
        rich_help_panel=_PEERS,
        metavar="HOST:PORT",
        help="The helper of role 1.",
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="ADSERVER_INSECURE",
        rich_help_panel=_PEERS,
        help="No TLS; loopback addresses only.",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        envvar="ADSERVER_TLS_CERT",
        rich_help_panel=_PEERS,
        help="PEM: this server's certificate chain.",
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        envvar="ADSERVER_TLS_KEY",
        rich_help_panel=_PEERS,
        help="PEM: the certificate's private key.",
    ),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="ADSERVER_TLS_CA",
        rich_help_panel=_PEERS,
        help="PEM: the authorities that sign peers' certificates.",
    ),
]
DeadlineOption = Annotated[
    float,
    typer.Option(
        "--deadline",
        envvar="ADSERVER_DEADLINE",
        rich_help_panel=_PEERS,
        min=0.1,
        help="Seconds that a helper has for an answer that takes it no time.",
    ),
]
RoundDeadlineOption = Annotated[
    float,
    typer.Option(
        "--round-deadline",
        envvar="ADSERVER_ROUND_DEADLINE",
        rich_help_panel=_PEERS,
        min=0.1,
        help=(
            "Seconds that a helper has for what it computes: a round, a query, an evaluation, a dataset. One"
            f" that is dead is noticed within {Keepalive().noticed_within_s:g}."
        ),
    ),
]
TracesOption = Annotated[
    Traces,
    typer.Option(
        "--traces",
        envvar="ADSERVER_TRACES",
        rich_help_panel=WATCHING,
        help="Where spans go; otlp as OTEL_EXPORTER_OTLP_* says.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


_QUICK: Final[dict[str, tuple[Any, Any]]] = {
    "helper_0": (Helper0Option, Parameter.empty),
    "helper_1": (Helper1Option, Parameter.empty),
    "insecure": (InsecureOption, False),
    "tls_cert": (TlsCertOption, None),
    "tls_key": (TlsKeyOption, None),
    "tls_ca": (TlsCaOption, None),
    "deadline": (DeadlineOption, 60.0),
}
"""Each option about helpers and TLS, with its default."""
_COMPUTING: Final[dict[str, tuple[Any, Any]]] = _QUICK | {
    "round_deadline": (RoundDeadlineOption, ROUND_DEADLINE_S)
}
"""The same of commands for which helpers compute."""


def with_peers(*, is_computing: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options about helpers and TLS in place of its parameter `peers`.

    The command is called with the checked `Peers`. It takes `data`, too: its TLS files lie there by default.

    Args:
        is_computing: Whether helpers compute for this command: it has --round-deadline then.
    """
    options = _COMPUTING if is_computing else _QUICK

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        said = signature(command, eval_str=True)
        parameters: list[Parameter] = []
        for one in said.parameters.values():
            if one.name != "peers":
                parameters.append(one)
                continue
            parameters += [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in options.items()
            ]

        @wraps(command)
        def with_options(*, data: Path, **arguments: Any) -> None:
            peers = _peers(data, **{name: arguments.pop(name) for name in options})
            command(data=data, peers=peers, **arguments)

        with_options.__signature__ = said.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        return with_options

    return decorate


def _peers(
    data: Path,
    *,
    helper_0: str,
    helper_1: str,
    insecure: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    deadline: float,
    round_deadline: float = ROUND_DEADLINE_S,
) -> Peers:
    """The helpers as the options say; typer.BadParameter as `tls_files`."""
    tls = tls_files(
        insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
    )
    return Peers(
        addresses=(helper_0, helper_1), tls=tls, deadline_s=deadline, round_deadline_s=round_deadline
    )


def open_store(data_dir: Path, database: str | None) -> Engine:
    """The database that --data and --database name, with its tables."""
    engine = open_database(database or default_url(data_dir))
    create_tables(engine)
    return engine

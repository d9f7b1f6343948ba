"""The options that several commands share, each also an environment variable, and what they open."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final

from sqlalchemy import Engine

from adserver.peers.client import ROUND_DEADLINE_S
from adserver.peers.opening import Peers
from adserver.peers.retrying import BRIEF
from adserver.store.database import create_tables, default_url
from maskedlark.errors import HelperUnavailable
from maskedlark.observability.tracing import Traces
from maskedlark.releases.job import Sampling
from maskedlark.rpc.transport import Keepalive
from maskedlark.runtime.database import open_database
from maskedlark.terminal.options import option, panel
from maskedlark.terminal.tls_options import tls_files

_store = panel("Where things are kept")
_peers = panel("Helpers and TLS")
privacy = panel("Privacy")
watching = panel("What the operator sees")

DataOption = Annotated[Path, _store("Folder of the ad server's own files.", "--data", envvar="ADSERVER_DATA")]
DatabaseOption = Annotated[
    str | None,
    _store(
        "SQLAlchemy URL of another database than SQLite in --data.", "--database", envvar="ADSERVER_DATABASE"
    ),
]
Helper0Option = Annotated[
    str, _peers("The helper of role 0.", "--helper-0", envvar="ADSERVER_HELPER_0", metavar="HOST:PORT")
]
Helper1Option = Annotated[
    str, _peers("The helper of role 1.", "--helper-1", envvar="ADSERVER_HELPER_1", metavar="HOST:PORT")
]
InsecureOption = Annotated[
    bool, _peers("No TLS; loopback addresses only.", "--insecure", envvar="ADSERVER_INSECURE")
]
TlsCertOption = Annotated[
    Path | None, _peers("PEM: this server's certificate chain.", "--tls-cert", envvar="ADSERVER_TLS_CERT")
]
TlsKeyOption = Annotated[
    Path | None, _peers("PEM: the certificate's private key.", "--tls-key", envvar="ADSERVER_TLS_KEY")
]
TlsCaOption = Annotated[
    Path | None,
    _peers("PEM: the authorities that sign peers' certificates.", "--tls-ca", envvar="ADSERVER_TLS_CA"),
]
DeadlineOption = Annotated[
    float,
    _peers(
        "Seconds that a helper has for an answer that takes it no time.",
        "--deadline",
        envvar="ADSERVER_DEADLINE",
        min=0.1,
    ),
]
RoundDeadlineOption = Annotated[
    float,
    _peers(
        "Seconds that a helper has for what it computes: a round, a query, an evaluation, a dataset. One"
        f" that is dead is noticed within {Keepalive().noticed_within_s:g}.",
        "--round-deadline",
        envvar="ADSERVER_ROUND_DEADLINE",
        min=0.1,
    ),
]
WaitOption = Annotated[
    bool,
    _peers(
        "Wait up to ten minutes for helpers that are starting or away, not half a minute.",
        "--wait",
        envvar="ADSERVER_WAIT",
    ),
]
TracesOption = Annotated[
    Traces,
    watching("Where spans go; otlp as OTEL_EXPORTER_OTLP_* says.", "--traces", envvar="ADSERVER_TRACES"),
]
JsonOption = Annotated[bool, option("Print JSON for programs.", "--json")]
DatasetOption = Annotated[
    str,
    option(
        "The dataset, by the start of its id; not needed if there is only one.", "--dataset", metavar="ID"
    ),
]
TaskOption = Annotated[
    str, option("The task, by the start of its id; by default the dataset's.", "--task", metavar="ID")
]
CostOption = Annotated[
    float | None, option("What this may cost; by default a tenth of the task's budget.", "--epsilon")
]
SamplingOption = Annotated[
    Sampling,
    privacy(
        "allocation: each record in one round of every epoch. poisson: drawn anew in each round.",
        "--sampling",
    ),
]
PublicSamplesOption = Annotated[
    bool,
    privacy(
        "Charge the job as if everybody knew the samples: what models on the general path need.",
        "--public-samples",
    ),
]


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
_WAITING: Final[dict[str, tuple[Any, Any]]] = {"wait": (WaitOption, False)}
"""Of commands that wait for helpers."""


LONG: Final = replace(BRIEF, give_up_after_s=600.0)
"""For scripts that have just started the helpers: the first start of one compiles for a while."""


def with_peers(
    *, is_computing: bool = True, is_waiting: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options about helpers and TLS in place of its parameter `peers`.

    The command is called with the checked `Peers`. It takes `data`, too: its TLS files lie there by default.

    Args:
        is_computing: Whether helpers compute for this command: it has --round-deadline then.
        is_waiting: Whether it asks by the backoff of `peers`: it has --wait then.
    """
    options = (_COMPUTING if is_computing else _QUICK) | (_WAITING if is_waiting else {})

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
            peers = _peers_of(data, **{name: arguments.pop(name) for name in options})
            command(data=data, peers=peers, **arguments)

        with_options.__signature__ = said.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        return with_options

    return decorate


def _peers_of(
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
    wait: bool = False,
) -> Peers:
    """The helpers as the options say; typer.BadParameter as `tls_files`."""
    tls = tls_files(
        insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
    )
    return Peers(
        addresses=(helper_0, helper_1),
        tls=tls,
        deadline_s=deadline,
        round_deadline_s=round_deadline,
        backoff=replace(LONG if wait else BRIEF, tell=_tell),
    )


def _tell(cause: HelperUnavailable) -> None:
    """What a command waits for, in one line on standard error."""
    sys.stderr.write(f"waiting: {cause}\n")


def open_store(data_dir: Path, database: str | None) -> Engine:
    """The database that --data and --database name, with its tables."""
    engine = open_database(database or default_url(data_dir))
    create_tables(engine)
    return engine

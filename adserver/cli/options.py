"""The options that several commands share, each also an environment variable, and what they open."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from adserver.peers.deadlines import ROUND_DEADLINE_S
from adserver.records.sampling_options import SamplingOptions
from maskedlark.observability.traces import Traces
from maskedlark.releases.sampling import Sampling, StepNoise
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.peers.connect import Peers
    from adserver.peers.retrying import Backoff

store = panel("Storage")
_peers = panel("Helpers and TLS")
privacy = panel("Privacy")
watching = panel("Monitoring")

DataOption = Annotated[Path, store("Folder of the ad server's own files.", "--data", envvar="ADSERVER_DATA")]
DatabaseOption = Annotated[
    str | None,
    store(
        "SQLAlchemy URL of the database; default: SQLite in --data.", "--database", envvar="ADSERVER_DATABASE"
    ),
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
WaitOption = Annotated[
    bool,
    _peers(
        "Wait up to ten minutes, instead of half a minute, for helpers that are starting or unavailable.",
        "--wait",
        envvar="ADSERVER_WAIT",
    ),
]
TracesOption = Annotated[
    Traces,
    watching(
        "Where to export spans; otlp uses the OTEL_EXPORTER_OTLP_* environment variables.",
        "--traces",
        envvar="ADSERVER_TRACES",
    ),
]
JsonOption = Annotated[bool, option("Print JSON for programs.", "--json")]
DatasetOption = Annotated[
    str,
    option(
        "The start of the dataset's id; may be omitted if there is only one dataset.",
        "--dataset",
        metavar="ID",
    ),
]
TaskOption = Annotated[
    str, option("The start of the task's id; default: the dataset's task.", "--task", metavar="ID")
]
TrainOption = Annotated[
    list[str] | None,
    option(
        "A parameter to train, by name or pattern such as 'head.*' (`adserver model show` lists them); "
        "repeatable; default: all. What travels, is clipped and receives noise is of these alone.",
        "--train",
        metavar="NAME",
    ),
]
FreezeOption = Annotated[
    list[str] | None,
    option(
        "A parameter that keeps the value that the model has, by name or pattern; repeatable.",
        "--freeze",
        metavar="NAME",
    ),
]
OneTaskOption = Annotated[
    str,
    option("The start of the task's id; may be omitted if there is only one task.", "--task", metavar="ID"),
]
OneJobOption = Annotated[
    str, option("The start of the job's id; may be omitted if there is only one job.", "--job", metavar="ID")
]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The start of the job's id; may be omitted if there is only one job."),
]


def release_options(
    *,
    epsilon: Annotated[
        float | None,
        option("Epsilon that this may cost; default: a tenth of the task's budget.", "--epsilon"),
    ] = None,
    dataset: DatasetOption = "",
    query_id: Annotated[
        str,
        option(
            "An idempotency id, 16 random bytes in hex: repeating the command with the same id "
            "returns the same answer and is charged once. Default: a new id.",
            "--query-id",
            metavar="HEX",
        ),
    ] = "",
) -> dict[str, Any]:
    """Return the options that queries and evaluations share, by name: epsilon, dataset, id."""
    return locals()


def sampling_of(
    *,
    sampling: Annotated[
        Sampling,
        privacy(
            "allocation: each record takes part in one round of every epoch. poisson: records are "
            "drawn anew in each round."
        ),
    ] = Sampling.ALLOCATION,
    public_samples: Annotated[
        bool,
        privacy(
            "Charge the job as if the samples were public; models on the general path require it.",
            "--public-samples",
        ),
    ] = False,
    noise: Annotated[
        StepNoise,
        privacy(
            "correlated: each round removes a part of the previous round's noise from the weights. "
            "It saves budget against collusion, and does not count on the secrecy of samples."
        ),
    ] = StepNoise.INDEPENDENT,
    carried: Annotated[
        int | None,
        privacy(
            "For --noise correlated: the number of 64ths to remove; default: the best fit to the optimizer.",
            min=1,
            max=63,
        ),
    ] = None,
) -> SamplingOptions:
    """Return how a job draws its samples and its noise."""
    return SamplingOptions(
        is_allocated=sampling is Sampling.ALLOCATION,
        is_sample_public=public_samples,
        noise=noise,
        carried=carried,
    )


Reach: TypeAlias = "Callable[[Path, str, str], Peers]"
"""The helpers of a folder at two addresses."""


def reach_of(
    *,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    deadline: Annotated[
        float,
        _peers(
            "Seconds to wait for an answer that needs no computation at a helper.",
            envvar="ADSERVER_DEADLINE",
            min=0.1,
        ),
    ] = 60.0,
    round_deadline: Annotated[
        float,
        _peers(
            "Seconds to wait for a helper's computation: a round, query, evaluation or dataset. A "
            f"dead helper is detected within {Keepalive().noticed_within_s:g} s.",
            envvar="ADSERVER_ROUND_DEADLINE",
            min=0.1,
        ),
    ] = ROUND_DEADLINE_S,
    wait: WaitOption = False,
) -> Reach:
    """Return how helpers are reached; raise typer.BadParameter as `tls_files`."""

    def reach(data: Path, helper_0: str, helper_1: str) -> "Peers":
        from adserver.peers.connect import Peers
        from maskedlark.terminal.tls_options import tls_files

        tls = tls_files(
            insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
        )
        return Peers(
            addresses=(helper_0, helper_1),
            tls=tls,
            deadline_s=deadline,
            round_deadline_s=round_deadline,
            backoff=patience(wait=wait),
        )

    return reach


@takes(reach=reach_of)
def peers_of(
    *,
    data: DataOption,
    helper_0: Annotated[
        str, _peers("The helper of role 0.", envvar="ADSERVER_HELPER_0", metavar="HOST:PORT")
    ],
    helper_1: Annotated[
        str, _peers("The helper of role 1.", envvar="ADSERVER_HELPER_1", metavar="HOST:PORT")
    ],
    reach: Reach,
) -> "Peers":
    """Return the helpers that the options name."""
    return reach(data, helper_0, helper_1)


def patience(*, wait: bool) -> "Backoff":
    """Return how long a command retries, reporting on standard error what it waits for."""
    from adserver.peers.retrying import BRIEF, LONG

    return replace(LONG if wait else BRIEF, tell=_tell)


def _tell(cause: Exception) -> None:
    """Report on standard error, in one line, what a command waits for."""
    sys.stderr.write(f"waiting: {cause}\n")

"""The options that several commands share, each also an environment variable, and what they make."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adserver.records.sampling_options import SamplingOptions
from maskedlark.observability.traces import Traces
from maskedlark.releases.sampling import Sampling, StepNoise
from maskedlark.terminal.options import option, panel

store = panel("Storage")
peers = panel("Helpers and TLS")
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
    bool, peers("No TLS; loopback addresses only.", "--insecure", envvar="ADSERVER_INSECURE")
]
TlsCertOption = Annotated[
    Path | None, peers("PEM: this server's certificate chain.", "--tls-cert", envvar="ADSERVER_TLS_CERT")
]
TlsKeyOption = Annotated[
    Path | None, peers("PEM: the certificate's private key.", "--tls-key", envvar="ADSERVER_TLS_KEY")
]
TlsCaOption = Annotated[
    Path | None,
    peers("PEM: the authorities that sign peers' certificates.", "--tls-ca", envvar="ADSERVER_TLS_CA"),
]
WaitOption = Annotated[
    bool,
    peers(
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
CheckColumnsOption = Annotated[
    bool,
    option(
        "Whether a model is refused that looks up numbers, or one byte of an id, as rows of a table.",
        "--check-columns/--any-columns",
    ),
]
OneTaskOption = Annotated[
    str,
    option("The start of the task's id; may be omitted if there is only one task.", "--task", metavar="ID"),
]
OneJobOption = Annotated[
    str,
    option("The start of the job's id or name; default: the only job.", "--job", metavar="JOB"),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The start of the job's id or name; may be omitted if there is only one job."
    ),
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
            "An idempotency id, 16 random bytes in hex: repeating the command with the same id, also "
            "one that it printed, returns the same answer and is charged once. Default: a new id.",
            "--query-id",
            metavar="HEX",
        ),
    ] = "",
) -> dict[str, Any]:
    """Return the options that queries and evaluations share, by name: epsilon, dataset, id."""
    # The parameters by their names: nothing else is bound yet
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
            "It saves the budget against the ad server with one helper, and does not count on the secrecy of "
            "samples."
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

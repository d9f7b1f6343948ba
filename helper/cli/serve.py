"""`lark-helper serve` and `warmup`."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helper.cli.options import DatabaseOption, DataOption, tls_of
from helper.releases.release_grid import DEFAULT_STEP_MS
from helper.serving.cluster import WORKER_BYTES, RayCluster
from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES, Floors
from maskedlark.errors import InvalidSetting
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.observability.metrics_access import MetricsAccess
from maskedlark.observability.traces import Traces
from maskedlark.runtime.memory import memory_limit
from maskedlark.runtime.signals import stop_on_signals
from maskedlark.terminal.log_options import LogFormatOption
from maskedlark.terminal.options import making, option, panel, takes

if TYPE_CHECKING:
    from maskedlark.rpc.tls_files import TlsFiles

_floors = panel("Floors: reject tasks that ask for less privacy or more memory")
_cluster = panel("More machines (see the page on growing)")
_watching = panel("Monitoring")


# A round may take a quarter: two of the largest run at once (`WorkQuota`), and half is for the rest.
_OF_MEMORY: Final = 4
_LEAST_ROUND_BYTES: Final = 256 << 20

_floors_of: Final = making(
    Floors,
    min_batch_size=_floors(
        "Smallest min_batch_size (k) of a task.",
        "--min-batch-size-floor",
        envvar="HELPER_MIN_BATCH_SIZE_FLOOR",
        min=1,
    ),
    max_epsilon=_floors("Largest epsilon of a dataset."),
    max_collusion_epsilon=_floors("Largest epsilon of a dataset against the ad server with one helper."),
    max_delta=_floors("Largest delta of a task."),
    min_decoys=_floors("Fewest decoy labels in a report.", min=1),
    max_dataset_size=_floors("Most reports of a dataset.", min=1),
    max_dataset_bytes=_floors("Most bytes of a dataset.", min=1),
    max_round_seconds=_floors("Most core seconds that one round may take, by estimate.", min=0.001),
    max_parameters=_floors(
        "Most parameters of a model; each takes about 80 bytes of memory in a round.",
        min=1,
        max=MOST_PARAMETERS,
    ),
    max_tasks_per_origin=_floors("Most open tasks of one origin.", min=1),
    is_split_noise_allowed=_floors(
        "Accept tasks in which each helper adds half of the noise.",
        "--allow-split-noise",
        envvar="HELPER_ALLOW_SPLIT_NOISE",
    ),
    is_proof_required=_floors(
        "Accept only tasks whose reports prove that they count at most once and keep within their ranges.",
        "--require-proof",
        envvar="HELPER_REQUIRE_PROOF",
    ),
    is_noise_optional=_floors(
        "Accept tasks without noise; for debugging on loopback only.",
        "--allow-no-noise",
        envvar="HELPER_ALLOW_NO_NOISE",
    ),
)


@takes(floors=_floors_of, tls=tls_of)
def _serve_command(
    *,
    data: DataOption,
    listen: Annotated[str, option("host:port to serve on; port 0 picks a free port.", metavar="HOST:PORT")],
    database: DatabaseOption = None,
    segments: Annotated[
        str | None,
        option(
            "Object storage for new datasets: s3://BUCKET/PREFIX, gs:// or az://; credentials come "
            "from the environment.",
            envvar="HELPER_SEGMENTS",
            metavar="URL",
            show_default="files in --data",
        ),
    ] = None,
    keep_expired_days: Annotated[
        float,
        option("Days that a dataset is kept after its task has expired and its jobs are closed.", min=1),
    ] = 7,
    port_file: Annotated[
        Path | None, option("Write the bound address to this file once the helper answers.")
    ] = None,
    metrics_listen: Annotated[
        str | None,
        _watching("host:port to serve /metrics and /healthz on.", metavar="HOST:PORT"),
    ] = None,
    metrics_access: Annotated[
        MetricsAccess,
        _watching(
            "Protection of that port: loopback only, TLS with this helper's certificate, or plaintext "
            "behind a network policy. Callers are not authenticated."
        ),
    ] = MetricsAccess.LOOPBACK,
    otlp_metrics: Annotated[
        bool,
        _watching("Also send metrics to the collector of the OTEL_EXPORTER_OTLP_* environment variables."),
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    traces: Annotated[
        Traces, _watching("Where to export spans; otlp uses the OTEL_EXPORTER_OTLP_* environment variables.")
    ] = Traces.NONE,
    threads: Annotated[int, option("Number of calls answered at the same time.", min=1, max=1024)] = 16,
    opening_workers: Annotated[
        int | None, option("Number of processes that open reports.", min=1, show_default="one a core")
    ] = None,
    round_threads: Annotated[
        int | None, option("Number of threads that compute one round.", min=1, show_default="one a core")
    ] = None,
    max_preparing_bytes: Annotated[
        int,
        option(
            "Most memory for preparing datasets of all tasks, and an eighth of the disk space for "
            "it; one ad server may use three quarters.",
            min=1,
        ),
    ] = PREPARED_BYTES,
    max_held_bytes: Annotated[
        int,
        option(
            "Most bytes of one ad server on the disk and in --segments: its datasets until they "
            "are deleted, and its preparations.",
            min=1,
        ),
    ] = MOST_HELD_BYTES,
    release_grid_ms: Annotated[
        float,
        option(
            "Delay answers to a multiple of this many milliseconds after the request, so "
            "that their timing reveals nothing.",
            min=0.1,
            max=60_000,
        ),
    ] = DEFAULT_STEP_MS,
    ray: Annotated[
        str | None,
        _cluster(
            "Address of the head of a Ray cluster that also computes, as in `ray start`.", metavar="HOST:PORT"
        ),
    ] = None,
    ray_worker_tls: Annotated[
        Path | None,
        _cluster(
            "Folder with this machine's key and certificate for its workers, made by "
            "`lark-helper cluster certificate`; only this user may be able to read the key."
        ),
    ] = None,
    ray_worker_bytes: Annotated[
        int, _cluster("Most memory for opened records at each worker.", min=1)
    ] = WORKER_BYTES,
    ray_open_reports: Annotated[
        bool,
        _cluster("Also open reports on workers, which then receive this helper's HPKE keys."),
    ] = False,
    tls: "TlsFiles | None",
    floors: Floors,
    max_round_bytes: Annotated[
        int | None,
        _floors(
            "Most memory that one round, query or evaluation may take, by estimate; all together take twice"
            " as much, and one ad server half of that.",
            min=1,
            show_default="a quarter of what this machine or its container offers",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        _floors(
            "Accept only tasks whose other helper has this fingerprint; repeatable.",
            envvar="HELPER_PEERS",
            metavar="FINGERPRINT",
            show_default="any",
        ),
    ] = None,
) -> None:
    """Serve the ad server until SIGTERM, then finish the calls in progress."""
    # what serves takes a second to import: its help does without
    from helper.cli.main import app
    from helper.serving.server import HelperSettings, serve
    from maskedlark.observability.tracing import tracing
    from maskedlark.terminal.unknown_variables import warn_of_unknown_variables

    configure_logging(log_format)
    # The other one is of workers on Ray, which may run on this machine too
    warn_of_unknown_variables(app, "HELPER_", {"HELPER_WORKER_TLS"})
    settings = HelperSettings(
        data=data,
        listen=listen,
        tls=tls,
        floors=replace(
            floors,
            # As `fingerprint` writes them: floors compare text.
            peers=frozenset(one.lower() for one in peer or ()),
            max_round_bytes=max_round_bytes or max(_LEAST_ROUND_BYTES, memory_limit() // _OF_MEMORY),
        ),
        database=database,
        port_file=port_file,
        threads=threads,
        opening_workers=opening_workers,
        round_threads=round_threads,
        metrics_listen=metrics_listen,
        metrics_access=metrics_access,
        otlp_metrics=otlp_metrics,
        max_preparing_bytes=max_preparing_bytes,
        max_held_bytes=max_held_bytes,
        release_grid_ms=release_grid_ms,
        segments=segments,
        keep_expired_days=keep_expired_days,
        cluster=_cluster_of(ray, ray_worker_tls, ray_worker_bytes, opens_shares=ray_open_reports),
    )
    with stop_on_signals() as stop, tracing("helper", traces):
        serve(settings, stop)


def _cluster_of(
    address: str | None, worker_tls: Path | None, worker_bytes: int, *, opens_shares: bool = False
) -> RayCluster | None:
    """Return the cluster of the options, or None."""
    if address is None:
        return None
    # Refused and not left out: orders hold keys of records, and must not go in the clear.
    if worker_tls is None:
        raise InvalidSetting(
            "--ray requires --ray-worker-tls: create the folder with `lark-helper cluster init` and "
            "`lark-helper cluster certificate`"
        )
    return RayCluster(
        address=address, worker_tls=worker_tls, worker_bytes=worker_bytes, opens_shares=opens_shares
    )


def _warmup_command(
    *,
    other_machines: Annotated[
        bool,
        option(
            "Also compile for processors without AVX-512 if this one has it: for an image, or a shared cache."
        ),
    ] = False,
) -> None:
    """Compile what rounds need and check this machine's arithmetic, so that `serve` is ready at once.

    Compiled loops are kept in NUMBA_CACHE_DIR, or next to the installed package. They are good for
    processors with AVX-512, or with AVX2, until Python, numba or this package change.
    """
    from helper.serving.warmup import warm_up, warm_up_for_others

    began = time.monotonic()
    (warm_up_for_others if other_machines else warm_up)()
    typer.echo(f"ready: this machine's arithmetic is correct ({time.monotonic() - began:.1f} s)")

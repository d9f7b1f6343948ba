"""`browser-sim devices`: people whose devices train a task's models at home."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from browser_sim.commands import reporting_errors
from browser_sim.kinds import HoldingKind, TrainerKind
from browser_sim.options import (
    CsvOption,
    JsonOption,
    MnistDirOption,
    SeedOption,
    load_encoder,
    parse_trusted_helpers,
    protection,
    table_of,
)
from browser_sim.waiting import BRIEF_S, LONG_S, patiently
from maskedlark.terminal.options import option, panel, takes
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from browser_sim.devices.device_data import Holdings
    from browser_sim.endpoint import Protection
    from browser_sim.sources.table import TableSettings
    from maskedlark.encoding.encoder import Encoder

ChooseEncoder: TypeAlias = "Callable[[Encoder | None], Encoder | None]"
"""Takes the encoder that was given, and returns the one that a table is read with."""

_holdings = panel("Data on devices")
_churn = panel("Device behaviour")
_local = panel("Jobs without helpers")


@takes(table=table_of, without=["label_kind", "value"])
def _holdings_of(
    *,
    holding: Annotated[HoldingKind, _holdings("The source of the examples.")] = HoldingKind.MNIST,
    devices: Annotated[int, _holdings("mnist: number of devices.", min=1)] = 100,
    shards: Annotated[int, _holdings("mnist: number of shards per device.", min=1)] = 2,
    shard_size: Annotated[int, _holdings("mnist: number of examples per shard.", min=1)] = 300,
    mnist_dir: MnistDirOption = None,
    csv: CsvOption = None,
    table: "Callable[[Path], TableSettings]",
    encoder: Annotated[
        Path | None,
        _holdings(
            "csv: encoder file of `encode --fit`, which turns cells into bytes; default: the task's encoder, "
            "if it names one, and else one fitted to this table.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    user: Annotated[str | None, _holdings("csv: the column that identifies the person.")] = None,
    text: Annotated[
        Path | None, _holdings("text: gzip-compressed JSON file with lines by speaker.", dir_okay=False)
    ] = None,
    least: Annotated[int, _holdings("csv and text: the fewest examples of a person.", min=1)] = 1,
    seed: SeedOption = None,
) -> "Callable[[ChooseEncoder], Holdings]":
    """Return what reads the data of the devices that the options describe, once the encoder is known."""
    from browser_sim.devices.device_data import mnist_in_shards, text_by_speaker
    from browser_sim.draws import Draws

    # What reads a table waits for the task's encoder, which is known once its bundle is here.
    match holding:
        case HoldingKind.MNIST:
            return lambda _: mnist_in_shards(
                mnist_dir,
                devices=devices,
                shards_each=shards,
                shard_size=shard_size,
                draws=Draws(seed=seed),
            )
        case HoldingKind.CSV:
            if csv is None or user is None:
                raise typer.BadParameter("csv data requires --csv FILE and --user COLUMN")
            settings, given = table(csv), load_encoder(encoder) if encoder else None
            return lambda choose: _of_table(replace(settings, encoder=choose(given)), user, least)
        case HoldingKind.TEXT:
            if text is None:
                raise typer.BadParameter("text data requires --text FILE")
            return lambda _: text_by_speaker(text, least=least)


@reporting_errors()
@takes(holdings=_holdings_of, guarded=protection, trusted=parse_trusted_helpers)
def _devices_command(
    *,
    site: Annotated[str, option("The ad server's HTTP address.", metavar="URL")],
    task: Annotated[str, option("The task's id, in full.", metavar="ID")] = "",
    local_job: Annotated[
        str, _local("The full id of a job without helpers; instead of --task.", metavar="ID")
    ] = "",
    most_epsilon: Annotated[
        float,
        _local(
            "The most epsilon that one whole update may cost; devices ignore jobs that cost more.", min=0.0
        ),
    ] = 8.0,
    visits: Annotated[int, _local("Number of times that each device takes part.", min=1)] = 1,
    store: Annotated[
        Path, option("File for stored answers: one for each task, job and round.", dir_okay=False)
    ],
    holdings: "Callable[[ChooseEncoder], Holdings]",
    trainer: Annotated[
        TrainerKind, option("The training library: torch (the extra `torch`) also trains ONNX graphs.")
    ] = TrainerKind.NUMPY,
    consent: Annotated[float, _churn("Share of people who take part.", min=0.0, max=1.0)] = 1.0,
    cap: Annotated[int | None, _churn("The most rounds that a device answers.", min=1)] = None,
    drop_out: Annotated[
        float, _churn("Probability that a device disappears before it sends.", min=0.0, max=1.0)
    ] = 0.0,
    late: Annotated[
        float, _churn("Probability that a device sends after the end of the round.", min=0.0, max=1.0)
    ] = 0.0,
    twice: Annotated[
        float, _churn("Probability that a device sends its report twice.", min=0.0, max=1.0)
    ] = 0.0,
    not_ready: Annotated[
        float, _churn("Probability that a device cannot train and sends cover.", min=0.0, max=1.0)
    ] = 0.0,
    rounds: Annotated[int | None, option("Stop after this many rounds.", min=1)] = None,
    idle: Annotated[float, option("Stop after this many seconds without a round.", min=0.1)] = 30.0,
    seed: SeedOption = None,
    wait: Annotated[
        bool,
        option(
            "With --task: wait up to ten minutes, instead of half a minute, for an ad server that "
            "is starting.",
            "--wait",
        ),
    ] = False,
    guarded: "Protection",
    trusted: tuple[bytes, ...],
    as_json: JsonOption = False,
) -> None:
    """Answer a task's federated rounds until there are no more, or send noisy updates to a local job.

    Each device draws at random in each round whether it trains; otherwise it sends zeros that are
    indistinguishable from an update. It stores each answer before sending, and sends only stored answers.
    """
    from browser_sim.devices.answers import AnswerStore
    from browser_sim.devices.local import LocalSettings, run_local
    from browser_sim.devices.local_store import LocalStore
    from browser_sim.devices.run import Churn, FleetSettings, run_devices
    from browser_sim.task_host import encoder_for, load_bundle

    site = site.rstrip("/")
    if bool(task) == bool(local_job):
        raise typer.BadParameter("expected exactly one of --task and --local-job")
    if local_job and wait:
        raise typer.BadParameter("--wait requires --task: leave it out with --local-job")
    if local_job and trainer is not TrainerKind.NUMPY:
        raise typer.BadParameter(
            "--trainer does not apply: a job without helpers trains a dense network in numpy; leave it out"
        )
    if local_job:
        local = LocalSettings(
            site=site,
            job_id=_id_of(local_job),
            # A job without helpers has no task, and so no encoder that a signature names.
            holdings=holdings(lambda given: given),
            most_epsilon=most_epsilon,
            visits=visits,
            twice=twice,
            seed=seed,
        )
        with LocalStore(store) as updates:
            found = run_local(local, updates, guarded)
        typer.echo(json.dumps(found.as_json()) if as_json else found.sentence)
        return
    location = f"{site}/v1/tasks/{task}"
    bundle = patiently(
        lambda: load_bundle(location, guarded, trusted, now=time.time()),
        give_up_after_s=LONG_S if wait else BRIEF_S,
        tell=lambda what: typer.echo(f"waiting: {what}", err=True),
    )
    settings = FleetSettings(
        bundle=bundle,
        site=site,
        protection=guarded,
        holdings=holdings(lambda given: encoder_for(bundle.task, given, location, guarded)),
        consent=consent,
        cap=cap,
        churn=Churn(drop_out=drop_out, late=late, twice=twice, not_ready=not_ready),
        seed=seed,
        trainer=trainer,
        rounds=rounds,
        idle_s=idle,
    )

    def show(index: int) -> None:
        if not as_json:
            typer.echo(f"round {index} is answered", err=True)

    with AnswerStore(store) as answers:
        told = run_devices(settings, answers, show)
    typer.echo(json.dumps(told.as_json()) if as_json else told.sentence)


def _id_of(typed: str) -> bytes:
    try:
        return bytes.fromhex(typed)
    except ValueError:
        raise typer.BadParameter(f"the job id is {typed!r}: expected hexadecimal digits") from None


def _of_table(table: "TableSettings", user: str, least: int) -> "Holdings":
    from browser_sim.devices.device_data import table_by_user

    held = table_by_user(table, user, least=least)
    for reason, count in held.rows.left_out.items() if held.rows else ():
        typer.echo(f"{plural(count, 'row is', 'rows are')} left out: {reason}", err=True)
    return held

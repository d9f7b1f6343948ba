"""`browser-sim devices`: people whose devices train a task's models at home."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from browser_sim.binning import Binning
from browser_sim.commands import reporting_errors
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.holdings import (
    HoldingKind,
    Holdings,
    held_by,
    mnist_in_shards,
    table_by_user,
    text_by_speaker,
)
from browser_sim.devices.run import Churn, FleetSettings, run_devices
from browser_sim.draws import Draws
from browser_sim.options import (
    CsvOption,
    IgnoreOption,
    InsecureOption,
    JsonOption,
    LabelOption,
    MnistDirOption,
    SeedOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TrustHelperOption,
    protection,
    trusted_helpers,
)
from browser_sim.sources.table import TableSettings
from browser_sim.task_host import load_bundle
from maskedlark.reports.task import LabelKind

_HOLDINGS = "What devices hold"
_CHURN = "What happens to devices"


def devices_command(
    *,
    site: Annotated[str, typer.Option("--site", metavar="URL", help="The ad server's HTTP address.")],
    task: Annotated[str, typer.Option("--task", metavar="ID", help="The task's id, in full.")],
    store: Annotated[
        Path,
        typer.Option(
            "--store", dir_okay=False, help="File of stored answers: one for each task, job and round."
        ),
    ],
    holding: Annotated[
        HoldingKind, typer.Option("--holding", rich_help_panel=_HOLDINGS, help="Where examples come from.")
    ] = HoldingKind.MNIST,
    devices: Annotated[
        int, typer.Option("--devices", min=1, rich_help_panel=_HOLDINGS, help="mnist: how many devices.")
    ] = 100,
    shards: Annotated[
        int, typer.Option("--shards", min=1, rich_help_panel=_HOLDINGS, help="mnist: shards a device.")
    ] = 2,
    shard_size: Annotated[
        int, typer.Option("--shard-size", min=1, rich_help_panel=_HOLDINGS, help="mnist: examples a shard.")
    ] = 300,
    mnist_dir: MnistDirOption = None,
    csv: CsvOption = None,
    label: LabelOption = None,
    ignore: IgnoreOption = None,
    user: Annotated[
        str | None,
        typer.Option("--user", rich_help_panel=_HOLDINGS, help="csv: the column that names the person."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            dir_okay=False,
            rich_help_panel=_HOLDINGS,
            help="text: gzip-packed JSON, lines by speaker.",
        ),
    ] = None,
    least: Annotated[
        int,
        typer.Option(
            "--least", min=1, rich_help_panel=_HOLDINGS, help="csv and text: examples a person, at least."
        ),
    ] = 1,
    consent: Annotated[
        float,
        typer.Option(
            "--consent", min=0.0, max=1.0, rich_help_panel=_CHURN, help="The share of people who take part."
        ),
    ] = 1.0,
    cap: Annotated[
        int | None,
        typer.Option("--cap", min=1, rich_help_panel=_CHURN, help="The most rounds that a device answers."),
    ] = None,
    drop_out: Annotated[
        float,
        typer.Option(
            "--drop-out", min=0.0, max=1.0, rich_help_panel=_CHURN, help="Goes away before it sends."
        ),
    ] = 0.0,
    late: Annotated[
        float,
        typer.Option(
            "--late", min=0.0, max=1.0, rich_help_panel=_CHURN, help="Sends when the round is over."
        ),
    ] = 0.0,
    twice: Annotated[
        float,
        typer.Option("--twice", min=0.0, max=1.0, rich_help_panel=_CHURN, help="Sends its report again."),
    ] = 0.0,
    not_ready: Annotated[
        float,
        typer.Option(
            "--not-ready", min=0.0, max=1.0, rich_help_panel=_CHURN, help="Cannot train: sends cover."
        ),
    ] = 0.0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Stop after so many rounds.")] = None,
    idle: Annotated[
        float, typer.Option("--idle", min=0.1, help="Stop after so many seconds without a round.")
    ] = 30.0,
    seed: SeedOption = None,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    trust_helper: TrustHelperOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a task's federated rounds until there are no more.

    Each device flips its own coin in each round, trains if it is drawn, and otherwise sends zeros that nobody
    can tell from an update. What it sends is stored first, and only that is ever sent.
    """
    with reporting_errors(Console(stderr=True)):
        guarded = protection(insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca)
        site = site.rstrip("/")
        bundle = load_bundle(
            f"{site}/v1/tasks/{task}", guarded, trusted_helpers(trust_helper), now=time.time()
        )
        match holding:
            case HoldingKind.MNIST:
                holdings = mnist_in_shards(
                    mnist_dir,
                    devices=devices,
                    shards_each=shards,
                    shard_size=shard_size,
                    randomness=held_by(holding, Draws(seed=seed)),
                )
            case HoldingKind.CSV:
                holdings = _of_table(csv, label, user, ignore, least)
            case HoldingKind.TEXT:
                if text is None:
                    raise typer.BadParameter("holding text needs --text FILE")
                holdings = text_by_speaker(text, least=least)
        settings = FleetSettings(
            bundle=bundle,
            site=site,
            protection=guarded,
            holdings=holdings,
            consent=consent,
            cap=cap,
            churn=Churn(drop_out=drop_out, late=late, twice=twice, not_ready=not_ready),
            seed=seed,
            rounds=rounds,
            idle_s=idle,
        )

        def show(index: int) -> None:
            if not as_json:
                typer.echo(f"round {index} is answered", err=True)

        with AnswerStore(store) as answers:
            told = run_devices(settings, answers, show)
        typer.echo(json.dumps(told.as_json()) if as_json else f"{told.rounds} rounds: {dict(told.outcomes)}")


def _of_table(
    path: Path | None, label: str | None, user: str | None, ignore: list[str] | None, least: int
) -> Holdings:
    if path is None or label is None or user is None:
        raise typer.BadParameter("holding csv needs --csv FILE, --label COLUMN and --user COLUMN")
    table = TableSettings(
        path=path,
        label=label,
        label_kind=LabelKind.CLASSES,
        ignore=(*(ignore or ()), user),
        binning=Binning.QUANTILE,
        bins=256,
    )
    return table_by_user(table, user, least=least)

"""`browser-sim devices`: people whose devices train a task's models at home."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from browser_sim.commands import reporting_errors
from browser_sim.kinds import HoldingKind, TrainerKind
from browser_sim.options import (
    CsvOption,
    IgnoreOption,
    JsonOption,
    LabelOption,
    MnistDirOption,
    SeedOption,
    parse_trusted_helpers,
    protection,
)
from browser_sim.waiting import BRIEF_S, LONG_S, patiently
from maskedlark.encoding.column_kinds import Binning
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from browser_sim.devices.device_data import Holdings
    from browser_sim.endpoint import Protection

_holdings = panel("What devices hold")
_churn = panel("What happens to devices")
_local = panel("Jobs without helpers")


def holdings_of(
    *,
    holding: Annotated[HoldingKind, _holdings("Where examples come from.")] = HoldingKind.MNIST,
    devices: Annotated[int, _holdings("mnist: how many devices.", min=1)] = 100,
    shards: Annotated[int, _holdings("mnist: shards a device.", min=1)] = 2,
    shard_size: Annotated[int, _holdings("mnist: examples a shard.", min=1)] = 300,
    mnist_dir: MnistDirOption = None,
    csv: CsvOption = None,
    label: LabelOption = None,
    ignore: IgnoreOption = None,
    user: Annotated[str | None, _holdings("csv: the column that names the person.")] = None,
    text: Annotated[
        Path | None, _holdings("text: gzip-packed JSON, lines by speaker.", dir_okay=False)
    ] = None,
    least: Annotated[int, _holdings("csv and text: examples a person, at least.", min=1)] = 1,
    seed: SeedOption = None,
) -> "Holdings":
    """Return the data of the devices that the options describe."""
    from browser_sim.devices.device_data import dealing_stream, mnist_in_shards, text_by_speaker
    from browser_sim.draws import Draws

    match holding:
        case HoldingKind.MNIST:
            return mnist_in_shards(
                mnist_dir,
                devices=devices,
                shards_each=shards,
                shard_size=shard_size,
                randomness=dealing_stream(holding, Draws(seed=seed)),
            )
        case HoldingKind.CSV:
            return _of_table(csv, label, user, ignore, least)
        case HoldingKind.TEXT:
            if text is None:
                raise typer.BadParameter("holding text needs --text FILE")
            return text_by_speaker(text, least=least)


@reporting_errors()
@takes(holdings=holdings_of, guarded=protection, trusted=parse_trusted_helpers)
def devices_command(
    *,
    site: Annotated[str, option("The ad server's HTTP address.", metavar="URL")],
    task: Annotated[str, option("The task's id, in full.", metavar="ID")] = "",
    local_job: Annotated[
        str, _local("Instead of --task: a job without helpers, by its id in full.", metavar="ID")
    ] = "",
    most_epsilon: Annotated[
        float,
        _local("The most that one whole update may cost; devices take no part in other jobs.", min=0.0),
    ] = 8.0,
    visits: Annotated[int, _local("How often each device comes.", min=1)] = 1,
    store: Annotated[
        Path, option("File of stored answers: one for each task, job and round.", dir_okay=False)
    ],
    holdings: "Holdings",
    trainer: Annotated[
        TrainerKind, option("What trains: torch, of the extra devices-torch, also trains ONNX graphs.")
    ] = TrainerKind.NUMPY,
    consent: Annotated[float, _churn("The share of people who take part.", min=0.0, max=1.0)] = 1.0,
    cap: Annotated[int | None, _churn("The most rounds that a device answers.", min=1)] = None,
    drop_out: Annotated[float, _churn("Goes away before it sends.", min=0.0, max=1.0)] = 0.0,
    late: Annotated[float, _churn("Sends when the round is over.", min=0.0, max=1.0)] = 0.0,
    twice: Annotated[float, _churn("Sends its report again.", min=0.0, max=1.0)] = 0.0,
    not_ready: Annotated[float, _churn("Cannot train: sends cover.", min=0.0, max=1.0)] = 0.0,
    rounds: Annotated[int | None, option("Stop after so many rounds.", min=1)] = None,
    idle: Annotated[float, option("Stop after so many seconds without a round.", min=0.1)] = 30.0,
    seed: SeedOption = None,
    wait: Annotated[
        bool,
        option(
            "With --task: wait up to ten minutes for an ad server that is starting, not half a minute.",
            "--wait",
        ),
    ] = False,
    guarded: "Protection",
    trusted: tuple[bytes, ...],
    as_json: JsonOption = False,
) -> None:
    """Answer a task's federated rounds until there are no more, or send noised updates to a local job.

    Each device flips its own coin in each round, trains if it is drawn, and otherwise sends zeros that nobody
    can tell from an update. What it sends is stored first, and only that is ever sent.
    """
    from browser_sim.devices.answers import AnswerStore
    from browser_sim.devices.local import LocalSettings, run_local
    from browser_sim.devices.local_store import LocalStore
    from browser_sim.devices.run import Churn, FleetSettings, run_devices
    from browser_sim.task_host import load_bundle

    site = site.rstrip("/")
    if bool(task) == bool(local_job):
        raise typer.BadParameter("give either --task or --local-job")
    if local_job and wait:
        raise typer.BadParameter("--wait goes with --task")
    if local_job and trainer is not TrainerKind.NUMPY:
        raise typer.BadParameter("a job without helpers trains a dense network, in numpy: leave --trainer")
    if local_job:
        local = LocalSettings(
            site=site,
            job_id=_id_of(local_job),
            holdings=holdings,
            most_epsilon=most_epsilon,
            visits=visits,
            twice=twice,
            seed=seed,
        )
        with LocalStore(store) as updates:
            found = run_local(local, updates, guarded)
        typer.echo(json.dumps(found.as_json()) if as_json else f"{found.accepted} updates accepted")
        return
    bundle = patiently(
        lambda: load_bundle(f"{site}/v1/tasks/{task}", guarded, trusted, now=time.time()),
        give_up_after_s=LONG_S if wait else BRIEF_S,
        tell=lambda what: typer.echo(f"waiting: {what}", err=True),
    )
    settings = FleetSettings(
        bundle=bundle,
        site=site,
        protection=guarded,
        holdings=holdings,
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
    typer.echo(json.dumps(told.as_json()) if as_json else f"{told.rounds} rounds: {dict(told.outcomes)}")


def _id_of(typed: str) -> bytes:
    try:
        return bytes.fromhex(typed)
    except ValueError:
        raise typer.BadParameter(f"a job id is hexadecimal, not {typed!r}") from None


def _of_table(
    path: Path | None, label: str | None, user: str | None, ignore: list[str] | None, least: int
) -> "Holdings":
    from browser_sim.devices.device_data import table_by_user
    from browser_sim.sources.table import TableSettings

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

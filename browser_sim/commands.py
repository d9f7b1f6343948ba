"""`browser-sim run`, `describe` and `download`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum, unique
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from browser_sim.options import JsonOption, SeedOption, parse_trusted_helpers, protection, source_settings
from browser_sim.waiting import BRIEF_S, LONG_S
from maskedlark.errors import MaskedLarkError
from maskedlark.terminal.interactive import may_be_seen
from maskedlark.terminal.options import option, panel, takes
from maskedlark.terminal.whole_table import print_whole

if TYPE_CHECKING:
    from browser_sim.endpoint import Protection
    from browser_sim.run import Progress
    from browser_sim.sources import SourceSettings

_people = panel("People")
_files = panel("Files")


@unique
class _Downloadable(StrEnum):
    """Data sets that can be fetched."""

    MNIST = "mnist"
    ADULT = "adult"
    ONLINE_SHOPPERS = "online_shoppers"


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Report an error in one line, with exit status 1."""
    try:
        yield
    except MaskedLarkError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


@reporting_errors()
@takes(source=source_settings, guarded=protection, trusted=parse_trusted_helpers)
def _run_command(
    *,
    task: Annotated[str, option("The task bundle: a file, or a task host's URL.", metavar="FILE|URL")],
    to: Annotated[
        str, option("The ad server: HOST:PORT for gRPC, an http(s) URL for HTTP.", metavar="HOST:PORT|URL")
    ],
    source: "SourceSettings",
    guarded: "Protection",
    trusted: tuple[bytes, ...],
    seed: SeedOption = None,
    people: Annotated[
        int | None, _people("Number of people who see ads; default: enough for all records.", min=0)
    ] = None,
    impressions_per_person: Annotated[int, _people("Number of ads that each person sees.", min=1)] = 1,
    duration_days: Annotated[float, _people("Days over which ads are shown.", min=0)] = 1.0,
    attribution_window_hours: Annotated[
        float, _people("Hours after an impression during which a conversion counts.", min=0)
    ] = 24.0,
    max_extra_delay_hours: Annotated[
        float, _people("Largest random delay before an upload, in hours.", min=0)
    ] = 24.0,
    fake_rate: Annotated[float | None, _people("Share of fake reports; default: the task's setting.")] = None,
    consent_rate: Annotated[float, _people("Share of people who consent to reporting.", min=0, max=1)] = 1.0,
    start_unix_s: Annotated[
        float | None, _people("Start of the simulated clock in Unix seconds; default: the task's start.")
    ] = None,
    limit: Annotated[int | None, _people("Report at most this many records.", min=0)] = None,
    holdout: Annotated[Path | None, _files("Write a panel that is never reported to this .npz file.")] = None,
    holdout_fraction: Annotated[
        float | None,
        _files("The panel's share of the records; default: the source's own test set, or 0.2.", min=0, max=1),
    ] = None,
    holdout_seed: Annotated[
        int | None, _files("A seed of the panel alone: runs of one table then have the same panel.")
    ] = None,
    train_out: Annotated[
        Path | None, _files("Write the reported records in clear to this file; loopback demo only.")
    ] = None,
    workers: Annotated[
        int | None, option("Number of processes that seal; default: depends on the number of reports.", min=1)
    ] = None,
    wait: Annotated[
        bool,
        option(
            "Wait up to ten minutes, instead of half a minute, for an ad server that is starting "
            "or unavailable.",
            "--wait",
            envvar="BROWSER_SIM_WAIT",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Assign each record to one person, and upload the reports of the people's browsers."""
    # Imported here, so that help and wrong options are answered without numpy and cryptography.
    from browser_sim.draws import Draws
    from browser_sim.people import DAY_S, HOUR_S, Habits
    from browser_sim.run import RunSettings, run

    # Rows would be kept back, and written nowhere.
    if holdout is None and holdout_fraction is not None:
        raise typer.BadParameter("--holdout-fraction requires --holdout: give both, or neither")
    if holdout is None and holdout_seed is not None:
        raise typer.BadParameter("--holdout-seed requires --holdout: give both, or neither")
    are_named = source.table is not None and source.table.person is not None
    if are_named and (people is not None or impressions_per_person != 1):
        raise typer.BadParameter(
            "--user says whose each row is: leave out --people and --impressions-per-person"
        )
    settings = RunSettings(
        task=task,
        destination=to,
        source=source,
        habits=Habits(
            impressions_per_person=impressions_per_person,
            duration_s=duration_days * DAY_S,
            attribution_window_s=attribution_window_hours * HOUR_S,
            max_extra_delay_s=max_extra_delay_hours * HOUR_S,
            consent_rate=consent_rate,
        ),
        fake_rate=fake_rate,
        draws=Draws(seed=seed),
        people=people,
        limit=limit,
        panel_path=holdout,
        panel_fraction=holdout_fraction,
        panel_seed=holdout_seed,
        clear_path=train_out,
        starts_at_s=start_unix_s,
        protection=guarded,
        trusted_helpers=trusted,
        workers=workers,
        patience_s=LONG_S if wait else BRIEF_S,
    )
    # Before the run: a person may still stop it.
    _warn(seed=seed, train_out=train_out)
    with _showing_progress() as progress:
        summary = run(settings, progress, tell=lambda what: typer.echo(f"waiting: {what}", err=True))
    typer.echo(summary.to_json()) if as_json else print_whole(summary.to_table())


@reporting_errors()
@takes(source=source_settings, without=["value", "key", "gaps_as_zero", "user"])
def _describe_command(
    *, source: "SourceSettings", seed: SeedOption = None, as_json: JsonOption = False
) -> None:
    """Describe a source: its shape, the balance of its labels, and how its features become bytes."""
    from browser_sim.draws import Draws
    from browser_sim.sources import load_source
    from browser_sim.summary import describe

    description = describe(load_source(source, Draws(seed=seed)))
    typer.echo(description.to_json()) if as_json else print_whole(description.to_table())


@reporting_errors()
def _download_command(
    dataset: Annotated[_Downloadable, typer.Argument(help="The data set to fetch.")],
    *,
    to: Annotated[Path, option("The folder to write it to.")],
    mirror: Annotated[
        list[str] | None, option("URL of a mirror folder to fetch from instead; repeatable.")
    ] = None,
    or_sample: Annotated[
        bool,
        option(
            "If a table cannot be fetched, write a small made-up one and print a warning (not for mnist).",
            "--or-sample",
        ),
    ] = False,
) -> None:
    """Fetch a public data set and check its SHA-256; tables become CSV files with a header."""
    from browser_sim.download import MIRRORS, download
    from browser_sim.download_tables import download_or_sample

    def tell(what: str) -> None:
        typer.echo(f"{dataset.value}: {what}", err=True)

    if dataset is _Downloadable.MNIST:
        download(to, mirrors=mirror or MIRRORS, on_file=lambda name: tell(f"{name}: checksum correct"))
    else:
        download_or_sample(dataset.value, to, mirrors=mirror or (), is_sample_allowed=or_sample, tell=tell)


def _warn(*, seed: int | None, train_out: Path | None) -> None:
    """Say what this run gives away."""
    if seed is not None:
        _say_yellow("--seed makes the masks predictable: use it for simulation only")
    if train_out is not None:
        _say_yellow(f"{train_out} will contain the reported records in clear: for demos only")


def _say_yellow(what: str) -> None:
    typer.secho(f"WARNING: {what}", fg="yellow", err=True)


@contextmanager
def _showing_progress() -> "Iterator[Progress]":
    """Show on a terminal how far the simulated people are, and then how many reports were answered."""
    if not may_be_seen():
        yield lambda _total: nullcontext(lambda _count: None)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    # On stderr: programs read the summary from stdout.
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        living = bar.add_task("people see ads", total=None)

        @contextmanager
        def reporting(total: int) -> Iterator[Callable[[int], None]]:
            bar.remove_task(living)
            job = bar.add_task("reports", total=total)
            yield lambda count: bar.advance(job, count)

        yield reporting

"""A whole run, in protocol order: task, records, people, sealed reports, upload, numbers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic, time

from browser_sim.delivery import Delivered, connect, deliver
from browser_sim.draws import Draws
from browser_sim.endpoint import Protection, host_of
from browser_sim.kinds import SourceKind
from browser_sim.people import Campaign, Habits, live_through
from browser_sim.sealing import seal_all, workers_for
from browser_sim.source import PanelSplit, Source
from browser_sim.sources import SourceSettings, load_source
from browser_sim.summary import Summary
from browser_sim.task_host import encoder_for, load_bundle
from browser_sim.waiting import BRIEF_S, patiently
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.rpc.transport import is_loopback

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Given the number of reports, a context whose value is called with how many more were answered for."""


@frozen
class RunSettings:
    """What `browser-sim run` was asked for.

    Attributes:
        task: The bundle's file or URL.
        destination: The ad server: HOST:PORT for gRPC, or an http(s) URL.
        source: Where the records come from.
        habits: How people behave; its fake rate gives way to `fake_rate`, its cap to the task's.
        fake_rate: The share of fake reports, or None for the task's.
        draws: All randomness.
        people: How many people see ads, or None for as many as there are records for.
        limit: The most records to report, or None.
        panel_path: Where to write the panel, or None for no panel.
        panel_fraction: How much of the records it gets, or None for the source's own test records or 0.2.
        panel_seed: Replays the choice of the panel, and nothing else; None: it is drawn with the rest.
        clear_path: Where to write the reported records in clear, or None; loopback demos only.
        starts_at_s: When the simulated clock starts, or None for the task's start.
        protection: How connections are protected.
        trusted_helpers: Ed25519 keys that the task's helpers must be among, if any.
        workers: Processes that seal, or None to choose.
        patience_s: How long a task host that does not answer is asked again.
    """

    task: str
    destination: str
    source: SourceSettings
    habits: Habits
    fake_rate: float | None = None
    draws: Draws
    people: int | None = None
    limit: int | None = None
    panel_path: Path | None = None
    panel_fraction: float | None = None
    panel_seed: int | None = None
    clear_path: Path | None = None
    starts_at_s: float | None = None
    protection: Protection
    trusted_helpers: tuple[bytes, ...] = ()
    workers: int | None = None
    patience_s: float = BRIEF_S


@frozen
class _Cast:
    """Everything that a run starts from, checked."""

    source: Source
    split: PanelSplit
    not_chosen: int
    """Records beyond the number that was asked for."""

    def left_out(self) -> dict[str, int]:
        """Return the rows that are not in the panel and were not shown an ad, by reason."""
        found = dict(self.source.rows.left_out) if self.source.rows else {}
        return found | ({"beyond --limit or --people": self.not_chosen} if self.not_chosen else {})


def run(
    settings: RunSettings,
    progress: Progress = lambda _: nullcontext(lambda _: None),
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Simulate, seal and upload; `tell` gets what is waited for.

    Raises:
        MaskedLarkError: InvalidTask, InvalidSource, HelperUnavailable or JobRefused; what was uploaded before
            stays uploaded.
    """
    began = monotonic()
    # Before anything is fetched, let alone sent.
    if settings.clear_path is not None and not is_loopback(host_of(settings.destination)):
        raise InvalidTask(
            "--train-out writes reported records in clear, but the ad server is on another "
            "machine: use it only with an ad server on loopback"
        )
    bundle = patiently(
        # This machine's clock: helpers' keys do not last longer in simulated days.
        lambda: load_bundle(settings.task, settings.protection, settings.trusted_helpers, now=time()),
        give_up_after_s=settings.patience_s,
        tell=tell,
    )
    settings = replace(settings, source=_with_encoder_of(bundle.task, settings))
    cast = _cast(settings, bundle.task)
    records = cast.split.reported
    campaign = _live(settings, bundle.task, cast)
    workers = settings.workers or workers_for(len(campaign.uploads))
    with (
        connect(settings.destination, settings.protection) as sender,
        progress(len(campaign.uploads)) as on_progress,
    ):
        # Sealed while it is sent: at no time are all reports in memory.
        sealed = seal_all(bundle, campaign.uploads, records, settings.draws, workers=workers)
        delivered = deliver(sender, sealed, on_progress=on_progress)
    # After delivery: a run that failed leaves no panel that looks like its own.
    _write_files(settings, cast, campaign)
    return _summary(
        settings.draws, bundle.task, cast, campaign=campaign, delivered=delivered, seconds=monotonic() - began
    )


def _with_encoder_of(task: Task, settings: RunSettings) -> SourceSettings:
    """Return the source with the task's encoder, if it names one and the source is a table or MNIST.

    Raises: as `encoder_for`.
    """
    table = settings.source.table
    is_mnist = settings.source.kind is SourceKind.MNIST
    if task.encoder is None or (table is None and not is_mnist):
        return settings.source
    given = settings.source.image_encoder if table is None else table.encoder
    encoder = encoder_for(task, given, settings.task, settings.protection)
    if table is None:
        return replace(settings.source, image_encoder=encoder)
    return replace(settings.source, table=replace(table, encoder=encoder))


def _cast(settings: RunSettings, task: Task) -> _Cast:
    """Load the records, set the panel aside, and take as many of the rest as were asked for, at random."""
    source = load_source(settings.source, settings.draws).with_measurement(task)
    source.check_fits(task)
    if settings.panel_path is None:
        split = PanelSplit(reported=source.records, panel=None)
    else:
        draws = settings.draws if settings.panel_seed is None else Draws(seed=settings.panel_seed)
        split = source.split_panel(settings.panel_fraction, draws)
    available = len(split.reported)
    wanted = _count_to_report(settings, available)
    # Chosen at random: the first rows of a sorted file would all have one label.
    if wanted < available:
        chosen = settings.draws.permutation(available, "limit")[:wanted]
        split = replace(split, reported=split.reported.take(chosen))
    return _Cast(source=source, split=split, not_chosen=available - wanted)


def _count_to_report(settings: RunSettings, available: int) -> int:
    """Return how many records to report; InvalidTask if there are too few."""
    wanted = available
    if settings.people is not None:
        wanted = settings.people * settings.habits.impressions_per_person
        if wanted > available:
            raise InvalidTask(
                f"{settings.people} people see {wanted} ads, but the source has only {available} "
                "records, each used once: reduce the number of people or ads"
            )
    return wanted if settings.limit is None else min(wanted, settings.limit)


def _live(settings: RunSettings, task: Task, cast: _Cast) -> Campaign:
    starts_at_s = float(task.starts_at) if settings.starts_at_s is None else settings.starts_at_s
    if not task.starts_at <= starts_at_s < task.expires_at:
        raise InvalidTask(
            f"the simulated clock must start within the task's period, {task.starts_at} to {task.expires_at}"
        )
    fake_rate = task.fake_report_rate if settings.fake_rate is None else settings.fake_rate
    # Only browsers can keep to it: helpers do not see whose a report is.
    cap = task.reports_per_user if task.unit is PrivacyUnit.USER else None
    # No label is -1: without a default label every impression converts.
    labels, default = cast.split.reported.labels, task.labels.default_label
    return live_through(
        labels != (-1.0 if default is None else default),
        replace(settings.habits, fake_rate=fake_rate, reports_per_person=cap),
        starts_at_s=starts_at_s,
        expires_at_s=float(task.expires_at),
        draws=settings.draws,
        people=cast.split.reported.people,
    )


def _write_files(settings: RunSettings, cast: _Cast, campaign: Campaign) -> None:
    """Write the panel, and the reported records in upload order for the demo's comparison."""
    kind = cast.source.label_kind
    if settings.panel_path is not None and cast.split.panel is not None:
        cast.split.panel.save(settings.panel_path, kind)
    if settings.clear_path is not None:
        cast.split.reported.take(campaign.reported_rows()).save(settings.clear_path, kind)


def _summary(
    draws: Draws, task: Task, cast: _Cast, *, campaign: Campaign, delivered: Delivered, seconds: float
) -> Summary:
    uploads, panel = campaign.uploads, len(cast.split.panel) if cast.split.panel else 0
    left_out = cast.left_out()
    return Summary(
        task_id=task.task_id.hex(),
        source=cast.source.name,
        seed=draws.seed,
        counts=campaign.counts,
        reports=len(uploads),
        **pick_attributes(delivered, ("accepted", "duplicates", "rejected")),
        resent_batches=delivered.resent,
        read=campaign.counts.impressions + panel + sum(left_out.values()),
        left_out=left_out,
        panel=panel,
        simulated_s=uploads[-1].at_s - uploads[0].at_s if uploads else 0.0,
        seconds=seconds,
    )

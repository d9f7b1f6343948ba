"""What a run says in the end: one row per number for people, one JSON object for programs."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Final

from browser_sim.people import PeopleCounts
from browser_sim.source import Source
from maskedlark.escape import DELETE, SHOWN_DELETE
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.terminal.escape import plain
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from rich.table import Table

# Of more features, as of images, the first few names are shown.
_MOST_NAMES: Final = 100
# What a table calls some of the counts: the names that programs read are short.
_SHOWN: Final = {
    "no_consent": "impressions without consent, not reported",
    "conversions": "impressions that converted",
    "expired": "impressions that did not convert in time, reported as such",
    "over_cap": "reports over a person's cap, not made",
    "fakes": "fake reports",
    "too_late": "reports after the task's end, not sent",
}


def _json(document: dict[str, Any]) -> str:
    """Return a document for a terminal or a file: without control characters, as names may hold some."""
    return json.dumps(document, indent=2).replace(DELETE, SHOWN_DELETE)


@frozen
class Summary:
    """A run in numbers.

    Guarantees: every record read is left out, in the panel or an impression; every impression is one of
        no_consent, conversions and expired; every report is accepted, a duplicate or rejected.

    Attributes:
        task_id: In hex.
        source: Its name.
        seed: What the run was drawn from, or None for real randomness.
        counts: What came of all impressions.
        reports: Reports sent, real and fake.
        accepted: Stored by the ad server.
        duplicates: Reports that the ad server held already.
        rejected: Reports that the ad server did not store, by reason.
        resent_batches: Batches sent more than once, since an answer failed to come.
        read: Records of the source: rows of a table's file.
        left_out: Those that are not in the panel and not an impression, by column and reason.
        panel: Records set aside and written in clear, never reported.
        simulated_s: From the first to the last upload, on the simulated clock.
        seconds: What the run took.
    """

    task_id: str
    source: str
    seed: int | None
    counts: PeopleCounts
    reports: int
    accepted: int
    duplicates: int
    rejected: Counter[str] = field(default_factory=Counter)
    resent_batches: int
    read: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    panel: int
    simulated_s: float
    seconds: float

    def _figures(self) -> dict[str, Any]:
        """Return the attributes by name, with each of the counts in their place."""
        named: dict[str, Any] = {}
        for name, value in asdict(self).items():
            named |= value if name == "counts" else {name: value}
        return named

    def to_json(self) -> str:
        """Return one JSON object with the attributes as keys, each of the counts as one."""
        return _json(self._figures())

    def to_table(self) -> "Table":
        """Return a table."""
        from rich.table import Table

        figures = self._figures()
        rejected, left_out = figures.pop("rejected"), figures.pop("left_out")
        table = Table(title="browser-sim run", show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in figures.items():
            table.add_row(
                _SHOWN.get(name, name.replace("_", " ")),
                f"{value:,.1f}" if isinstance(value, float) else plain(value),
            )
        for what, counts in (("left out", left_out), ("rejected", rejected)):
            for reason, count in sorted(counts.items()):
                table.add_row(plain(f"{what}: {reason}"), str(count))
        return table


@frozen
class _Description:
    """What `browser-sim describe` says of a source.

    Attributes:
        source: Its name.
        records: How many may be reported.
        own_test: How many the data set sets aside by itself.
        features: The width, a task's `num_features`.
        label_kind: A task's label kind.
        labels: Records by label; for values, the smallest and largest only.
        default_label: A task's `default_label`, or None.
        scaling: How features become bytes.
        notes: What was left out or assumed.
        left_out: Rows of a table that are no records, by column and reason.
        feature_names: One per feature.
    """

    source: str
    records: int
    own_test: int
    features: int
    label_kind: str
    labels: dict[str, float]
    default_label: int | None
    scaling: str
    notes: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    feature_names: tuple[str, ...]

    def to_json(self) -> str:
        """Return one JSON object with the attributes as keys."""
        return _json(asdict(self))

    def to_table(self) -> "Table":
        """Return a table: the balance of labels in full, the names of features where they are few."""
        from rich.table import Table

        # Names come from files: `plain` takes out what a terminal would obey.
        table = Table(title=plain(f"source {self.source}"), show_header=False)
        table.add_column(style="bold")
        table.add_column()
        table.add_row(
            "records",
            f"{self.records} (and {self.own_test} published test records)"
            if self.own_test
            else str(self.records),
        )
        # All of a table's, in the order in which a model gets them; of an image, pixels say nothing.
        shown = self.feature_names[: self.features if self.features <= _MOST_NAMES else 4]
        table.add_row(
            "features",
            plain(f"{self.features}: {', '.join(shown)}{', ...' if self.features > len(shown) else ''}"),
        )
        table.add_row("label kind", self.label_kind)
        for name, amount in self.labels.items():
            share = "" if self.label_kind == "values" else f" ({amount / self.records:.1%})"
            table.add_row(plain(f"label {name}"), f"{amount:g}{share}")
        table.add_row(
            "default label",
            "none: every impression has a label of its own"
            if self.default_label is None
            else str(self.default_label),
        )
        table.add_row("scaling", plain(self.scaling))
        for note in self.notes:
            table.add_row("note", plain(note))
        for reason, count in self.left_out.items():
            table.add_row("left out", plain(f"{plural(count, 'row')}: {reason}"))
        return table


def describe(source: Source) -> _Description:
    """Describe the shape, the balance of labels, and how features become bytes."""
    labels = source.records.labels
    if source.label_names:
        balance = {
            name: float((labels == position).sum()) for position, name in enumerate(source.label_names)
        }
    else:
        balance = {"smallest": float(labels.min()), "largest": float(labels.max())}
    return _Description(
        source=source.name,
        records=len(source.records),
        own_test=len(source.own_test) if source.own_test else 0,
        features=source.records.features.shape[1],
        label_kind=source.label_kind.value,
        labels=balance,
        left_out=source.rows.left_out if source.rows else {},
        **pick_attributes(source, ("default_label", "scaling", "notes", "feature_names")),
    )

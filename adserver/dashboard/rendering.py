"""Templates as HTML: every value is escaped, and numbers, times and ids are spelled in one way."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from adserver.dashboard.assets import ASSETS
from adserver.measuring.estimate import format_cell, spell
from adserver.messages.query import EstimateMessage
from adserver.records.round_figures import NOISE_TO_SIGNAL

_TEMPLATES: Final = Path(__file__).parent / "templates"
_ID_DIGITS: Final = 12
_TYPED: Final = re.compile("`([^`]+)`")
# Names of the code that would not be understood as they are
_SPELLED: Final = {
    "clip_norm": "clip norm of a gradient or update",
    "collusion_epsilon": "ε against the ad server with one helper",
    "delta": "δ",
    "epsilon": "ε against the ad server",
    "expires_at": "ends (UTC)",
    "fake_report_rate": "share of fake reports",
    "frac_bits": "fraction bits of a sum",
    "has_clip_count": "count of clipped updates",
    "has_weight": "weight of each update",
    "max_dataset_size": "dataset or round, at most",
    "mean_over_rate": "mean prediction over base rate",
    "min_batch_size": "dataset or round, at least (k)",
    "num_decoys": "decoy labels of a report",
    "num_features": "features",
    "num_parameters": "numbers in an update",
    "positives": "base rate",
    "pr_auc": "PR AUC",
    "roc_auc": "ROC AUC",
    "size": "number of them",
    "starts_at": "begins (UTC)",
    "time_bucket_s": "times rounded to, s",
    "unit": "protects a",
}
NONE: Final = "\u2013"
"""Stands where there is no number."""


def environment() -> Environment:
    """Create the template environment, in which a missing name is an error."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        # A misspelt name in a template is a bug, and must not show as an empty cell of a budget
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Templates come with the package: they do not change while it runs
        auto_reload=False,
    )
    filters = (
        _short, _count, _figure, _percent, _moment, _clock, _iso, _words, _spelled, _setting, _sentence,
        _estimate, _code,
    )  # fmt: skip
    made.filters |= {one.__name__.removeprefix("_"): one for one in filters}
    made.globals["asset"] = ASSETS.url
    made.globals["noise_to_signal_is"] = NOISE_TO_SIGNAL
    made.globals["assets_version"] = ASSETS.version
    return made


def _short(identifier: str | None) -> str:
    """Return the start of an id."""
    return (identifier or "")[:_ID_DIGITS]


def _count(number: float | None) -> str:
    """Format a whole number with commas between its thousands, as commands print it."""
    return NONE if number is None else f"{number:,.0f}"


def _figure(number: float | None, digits: int = 4) -> str:
    """Format a measured number to some digits, and a large one to the unit, as a count is."""
    if number is None or not math.isfinite(number):
        return NONE
    return spell(number, digits)


def _percent(share: float) -> str:
    """Format a share as a percentage, never 100 while something is missing."""
    bounded = min(max(share, 0.0), 1.0)
    return f"{math.floor(1_000 * bounded) / 10:g}"


def _moment(unix_s: float | None) -> str:
    """Format a time in UTC for people."""
    return NONE if unix_s is None else _utc(unix_s).strftime("%Y-%m-%d %H:%M")


def _clock(unix_s: float) -> str:
    """Format the time of day in UTC for people, to the second."""
    return _utc(unix_s).strftime("%H:%M:%S")


def _iso(unix_s: float) -> str:
    """Format a time for programs."""
    return _utc(unix_s).isoformat(timespec="seconds")


def _utc(unix_s: float) -> datetime:
    """Convert a time; one after the year 9999 becomes the last representable one."""
    return datetime.fromtimestamp(min(unix_s, datetime.max.replace(tzinfo=UTC).timestamp() - 86_400), UTC)


def _words(name: str) -> str:
    """Convert a name of the code to words."""
    return name.replace("_", " ")


def _sentence(text: str) -> str:
    """Begin a text with a capital and leave the rest as it is: names and later sentences have theirs."""
    return text[:1].upper() + text[1:]


def _code(text: str) -> Markup:
    """Show what messages have between backticks, which is to be typed, as code; all else is escaped."""
    return Markup(_TYPED.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def _spelled(name: str) -> str:
    """Convert the name of a setting or a metric, which is ours, to what people call it."""
    return _SPELLED.get(name, _words(name))


def _estimate(one: Mapping[str, Any], may_be_hidden: bool = False) -> str:
    """Format an estimate with its interval as the command's table has it."""
    found = EstimateMessage.model_validate({name: one.get(name) for name in EstimateMessage.model_fields})
    text = format_cell(found.estimate(), may_be_hidden=may_be_hidden)
    return text.replace(" ± ", "\u00a0±\u00a0")


def _setting(value: object) -> str:
    """Format a setting of a task: yes or no, a number as people write it, or the text."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return _count(value)
        case float():
            return _figure(value, 6)
        case _:
            return str(value)


def draw(environment: Environment, template: str, values: dict[str, Any]) -> str:
    """Render a page."""
    return environment.get_template(template).render(values)

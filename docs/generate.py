"""Writes docs/reference/ from the code: the CLIs, the task's settings and the errors.

Run by `make docs`; a test holds them up to date.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from adserver.views.reasons import HTTP_REASONS, JOB_STOPS, FurtherReason
from maskedlark.error_contract import (
    INVALID_TASK,
    UNAVAILABLE,
    UNSUPPORTED_VERSION,
    Contract,
    contract,
)
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
    Reason,
    ReportReason,
    ReportRejected,
    UnsupportedVersion,
)
from maskedlark.model.losses import Loss
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Axis, Measure, QuerySpec
from maskedlark.releases.update import UpdateSpec
from maskedlark.releases.update_job import Phase, UpdateJob, UpdateRound
from maskedlark.reports.measurement import Key, Measurement, Value
from maskedlark.reports.task import HelperIdentity, LabelSpace, Task
from maskedlark.reports.updates import UpdateForm

REFERENCE = Path(__file__).parent / "reference"
REASONS_HEAD = "| reason | meaning | again | charged | what to do |\n|---|---|---|---|---|"
NOTE = "<!-- Written by docs/generate.py (make docs). -->\n\n"


def pages() -> dict[str, str]:
    """Every generated page, by file name."""
    return {
        "cli-helper.md": cli("helper.cli.main", "lark-helper"),
        "cli-adserver.md": cli("adserver.cli.main", "adserver"),
        "cli-browser-sim.md": cli("browser_sim.cli", "browser-sim"),
        "task.md": settings(),
        "errors.md": errors(),
    }


def cli(module: str, name: str) -> str:
    """Return a command line's help as Markdown, by typer, with a paragraph for each option."""
    command = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 # our own modules
    text = re.sub(r"\n(?=\* )", "\n\n", shown.stdout.replace(str(Path.home()), "~"))
    return NOTE + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def settings() -> str:
    """The fields of the canonical objects, from their docstrings and types."""
    parts = [
        "# Task and job settings\n\nThe canonical objects that parties agree on"
        " ([specification](../spec/index.md)).\n"
    ]
    objects = (
        Task,
        LabelSpace,
        HelperIdentity,
        Measurement,
        Value,
        Key,
        JobSpec,
        QuerySpec,
        Measure,
        Axis,
        DiscoverySpec,
        EvaluationSpec,
        UpdateForm,
        UpdateJob,
        Phase,
        UpdateRound,
        UpdateSpec,
    )
    parts += [attributes(cls) for cls in objects]
    losses = "\n".join(f"| `{loss.value}` |" for loss in Loss)
    return NOTE + "\n".join(parts) + f"\n## Losses\n\n| loss |\n|---|\n{losses}\n"


def attributes(cls: type[Any]) -> str:
    """One class as a table of its fields."""
    documentation = inspect.getdoc(cls) or ""
    summary, _, listed = documentation.partition("Attributes:")
    meanings = dict(re.findall(r"^    (\w+): ((?:.|\n        )+)", listed, re.MULTILINE))
    rows = [f"| `{field.name}` | {' '.join(meanings[field.name].split())} |" for field in fields(cls)]
    return (
        f"## {cls.__name__}\n\n{' '.join(summary.split())}\n\n| field | meaning |\n|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def errors() -> str:
    """Every error and reason, and what follows from it."""
    parts = [
        "# Errors\n\nEvery error that one party can cause at another. Codes are stable; over HTTP they are"
        " the field `reason`, in metrics the label `reason`.\n\n*Again*: the same request may succeed later."
        " *Charged*: what it cost of a dataset's privacy budget.\n"
    ]
    kinds: list[tuple[type[MaskedLarkError], type[Reason] | Contract]] = [
        (InvalidTask, INVALID_TASK),
        (UnsupportedVersion, UNSUPPORTED_VERSION),
        (InvalidModel, ModelReason),
        (ReportRejected, ReportReason),
        (JobRefused, JobReason),
        (HelperUnavailable, UNAVAILABLE),
    ]
    for error, known in kinds:
        parts.append(f"## {error.__name__}\n\n{inspect.getdoc(error)}\n")
        if isinstance(known, Contract):
            parts.append(f"| again | charged | what to do |\n|---|---|---|\n| {follows(known)} |\n")
        else:
            rows = "\n".join(f"| `{one.value}` | {one.meaning} | {follows(contract(one))} |" for one in known)
            parts.append(f"{REASONS_HEAD}\n{rows}\n")
    parts.append(
        "## Answers over HTTP\n\nThe field `error` is the kind of a typed error above, or `RequestRefused`"
        f" or `Internal` with one of these reasons.\n\n{further(HTTP_REASONS)}"
    )
    parts.append(
        "## Why a job stopped\n\nA job that was refused or failed has a reason of InvalidModel or"
        " JobRefused, or one of these. *Again*: `adserver job resume` as it is may"
        f" succeed.\n\n{further(JOB_STOPS)}"
    )
    return NOTE + "\n".join(parts)


def further(reasons: Mapping[str, FurtherReason]) -> str:
    """The ad server's own reasons as a table."""
    rows = "\n".join(
        f"| `{reason}` | {known.meaning} | {follows(known.follows)} |" for reason, known in reasons.items()
    )
    return f"{REASONS_HEAD}\n{rows}\n"


def follows(known: Contract) -> str:
    """The last three cells of a row."""
    return f"{'yes' if known.is_retryable else 'no'} | {known.charged} | {known.remedy}"


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, page in pages().items():
        (REFERENCE / name).write_text(page)

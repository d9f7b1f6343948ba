"""Writes docs/reference/ from the code: CLIs, extras, the settings of tasks and strategies, and errors.

Run by `make docs`; a test holds them up to date.
"""

import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from adserver.views.reasons import HTTP_REASONS, JOB_STOPS, FurtherReason
from maskedlark.error_contract import (
    INVALID_SETTING,
    INVALID_TASK,
    UNAVAILABLE,
    UNSUPPORTED_VERSION,
    Contract,
    contract,
)
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidSetting,
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
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_training import LocalTraining
from maskedlark.federated.server_optimizer import ServerOptimizer
from maskedlark.federated.strategies import STRATEGIES
from maskedlark.federated.strategy import Strategy
from maskedlark.model.losses import Loss
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Axis, Measure, QuerySpec
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound, UpdateSpec
from maskedlark.reports.measurement import Key, Measurement, Value
from maskedlark.reports.task import HelperIdentity, LabelSpace, Task
from maskedlark.reports.updates import UpdateForm

REFERENCE = Path(__file__).parent / "reference"
REASONS_HEAD = "| reason | meaning | again | charged | what to do |\n|---|---|---|---|---|"
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PAGES_OF_COMMANDS = {
    "demo": "#lark-demo",
    "quickstart": "cli-adserver/quickstart.md",
    "adserver": "cli-adserver/index.md",
    "helper": "cli-helper.md",
    "browser": "cli-browser-sim.md",
}
NOTE = "<!-- Written by docs/generate.py (make docs). -->"


def pages() -> dict[str, str]:
    """Every generated page, by its path in the reference."""
    return {
        "cli-helper.md": noted(cli("helper.cli.main", "lark-helper")),
        **page_per_command("cli-adserver", cli("adserver.cli.main", "adserver")),
        "cli-browser-sim.md": noted(cli("browser_sim.cli", "browser-sim")),
        "cli-lark.md": lark(),
        "extras.md": extras(),
        "task.md": settings(),
        "strategies.md": strategies(),
        "errors.md": errors(),
    }


def noted(text: str) -> str:
    """Return a page with the note under its heading: the site names pages by how they begin."""
    heading, _, rest = text.partition("\n\n")
    return f"{heading}\n\n{NOTE}\n\n{rest}"


def cli(module: str, name: str) -> str:
    """Return a command line's help as Markdown, by typer, with a paragraph for each option."""
    command = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 # our own modules
    text = re.sub(r"\n(?=\* )", "\n\n", shown.stdout.replace(str(Path.home()), "~"))
    return with_whole_summaries(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def with_whole_summaries(text: str) -> str:
    """Return a command line's help whose lists link each command and have its first sentence, uncut."""
    sentences = dict(re.findall(r"^#+ `(.*)`\n\n((?:[^.]|\.(?!\s))*\.)", text, re.MULTILINE))
    command = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if heading := re.match(r"#+ `(.*)`", line):
            command = heading[1]
        elif listed := re.fullmatch(r"\* `([a-z][a-z-]*)`: .*", line):
            full_name = f"{command} {listed[1]}"
            sentence = " ".join(sentences[full_name].split())
            lines[number] = f"* [`{listed[1]}`](#{full_name.replace(' ', '-')}): {sentence}"
    return "\n".join(lines) + "\n"


def page_per_command(name: str, text: str) -> dict[str, str]:
    """Split a command line's help: `index.md`, which lists its commands, and a page of each, in one folder.

    Args:
        name: The folder's name.
        text: The help of the whole command line.
    """
    head, *commands = re.split(r"^#(?=# )", text, flags=re.MULTILINE)
    head = re.sub(r"^(\* \[`([a-z-]+)`\])\(.*?\)", r"\1(\2.md)", head, flags=re.MULTILINE)
    pages = {f"{name}/index.md": noted(head.rstrip() + "\n")}
    for command in commands:
        page = re.sub(r"^#(?=#+ )", "", command, flags=re.MULTILINE).rstrip() + "\n"
        pages[f"{name}/{page[: page.index('`', 3)].split()[-1]}.md"] = noted(page)
    return pages


def lark() -> str:
    """Return the page of the command that has those of all parties: its own help, and where theirs is."""
    whole, demo, *_ = cli("maskedlark.terminal.lark", "lark").split("\n## ")
    # A command that has no page stops `make docs` here
    linked = re.sub(r"\(#lark-([a-z]+)\)", lambda link: f"({PAGES_OF_COMMANDS[link[1]]})", whole)
    return noted(f"{linked}\n## {demo.strip()}\n")


def extras() -> str:
    """Return the page of the package's extras: what each is for, and what it installs."""
    text = PYPROJECT.read_text()
    listed = text.partition("[project.optional-dependencies]\n")[2]
    rows = []
    for name, requirements in tomllib.loads(text)["project"]["optional-dependencies"].items():
        found = re.search(rf"((?:^# .*\n)+){name} = ", listed, re.MULTILINE)
        if found is None:
            raise SystemExit(f"pyproject.toml: say in a comment above the extra {name} what it is for")
        meaning = " ".join(found[1].removeprefix("# ").replace("\n# ", " ").split())
        rows.append(f"| `{name}` | {meaning} | {brought(requirements)} |\n")
    return noted(
        "# Extras of the package\n\n`pip install` of the package alone brings what all parties share. An"
        " extra in brackets brings what a party or a feature needs; commas separate several"
        " ([install the package](../how-to/install.md)).\n\n| extra | for | brings |\n|---|---|---|\n"
        + "".join(rows)
    )


def brought(requirements: list[str]) -> str:
    """Return what an extra installs, as a cell: other extras, or names of packages without versions."""
    if len(requirements) == 1 and (others := re.search(r"^masked-lark\[(.*)\]$", requirements[0])):
        return "the extras " + ", ".join(f"`{one}`" for one in others[1].split(","))
    return ", ".join(re.split(r"[\[=<>]", one)[0] for one in requirements)


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
    return noted("\n".join(parts) + f"\n## Losses\n\n| loss |\n|---|\n{losses}\n")


def attributes(cls: type[Any]) -> str:
    """One class as a table of its fields."""
    summary, meanings = documented(cls)
    rows = [f"| `{field.name}` | {meanings[field.name]} |" for field in fields(cls)]
    return f"## {cls.__name__}\n\n{summary}\n\n| field | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def documented(cls: type[Any]) -> tuple[str, dict[str, str]]:
    """A class's docstring: the text, and the meaning of each attribute that it lists, one line each."""
    summary, _, listed = (inspect.getdoc(cls) or "").partition("Attributes:")
    found = re.findall(r"^    (\w+): ((?:.|\n        )+)", listed, re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(meaning.split()) for name, meaning in found}


def strategies() -> str:
    """The settings of each strategy: those of its own, those of all, and the objects in them."""
    shared = frozenset(one.name for one in fields(Strategy))
    parts = [
        "# Settings of strategies\n\nThe fields of the JSON file that `--settings` reads, and of `settings`"
        " in a `FederatedSubmission`. None is JSON's null. In a task of updates,"
        " `cover_rate` and the bound's `clip_norm`, `frac_bits`, `is_weight_summed` and `is_counted` may be"
        " left out: the task has them. `noise_multiplier` may be left out for `--epsilon`.\n",
        options("Every strategy", Strategy, frozenset({"kind"})),
    ]
    parts += [options(kind, cls, shared) for kind, cls in STRATEGIES.items()]
    sections = {
        "bound": UpdateBound,
        "quantile": AdaptiveClip,
        "local": LocalTraining,
        "server": ServerOptimizer,
    }
    parts += [options(f"The object {name}", cls, frozenset()) for name, cls in sections.items()]
    parts.append(options("draw-and-discard", DrawAndDiscard, frozenset({"kind"})))
    return noted("\n".join(parts))


def options(title: str, cls: type[Any], left_out: frozenset[str]) -> str:
    """A class as a table of what a settings file may contain, with defaults; no table if it has no field."""
    summary, meanings = documented(cls)
    rows = [
        f"| `{one.name}` | {default(one.default)} | {meanings[one.name]} |"
        for one in fields(cls)
        if one.name not in left_out
    ]
    table = ["| setting | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {title}\n\n{summary}\n", *table])


def default(value: Any) -> str:
    """A default as JSON spells it; nothing for a required setting."""
    if value is MISSING:
        return "required"
    if is_dataclass(value):
        return "`{}`"
    return f"`{json.dumps(value)}`"


def errors() -> str:
    """Every error and reason, and what follows from it."""
    parts = [
        "# Errors\n\nEvery error that one party can cause at another. Codes are stable; over HTTP they are"
        " the field `reason`, in metrics the label `reason`.\n\n*Again*: the same request may succeed later."
        " *Charged*: what it cost of a dataset's privacy budget.\n"
    ]
    kinds: list[tuple[type[MaskedLarkError], type[Reason] | Contract]] = [
        (InvalidTask, INVALID_TASK),
        (InvalidSetting, INVALID_SETTING),
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
    return noted("\n".join(parts))


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
    written = pages()
    for old in REFERENCE.rglob("*.md"):
        if NOTE in old.read_text():
            old.unlink()
    for name, page in written.items():
        path = REFERENCE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(page)

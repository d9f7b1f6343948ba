"""What became of a project's runs; of one that is not done also why, and what helps.

describe_runs(project)              # [{"run": "1", "state": "done", "auc": .71, ...}, ...]
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from adserver.client.local import LocalAdServer
from adserver.quickstart.project import Project
from adserver.quickstart.run_lock import running_process
from adserver.quickstart.runs import SUMMARY, Steps, describe_next
from adserver.records.job_record import JobRecord
from adserver.records.job_state import STOPPED, JobState
from adserver.views.job import describe_outcome
from adserver.views.printing import short
from maskedlark.errors import JobRefused
from maskedlark.frozen import pick_attributes

_FIGURES: Final = (
    "name", "dataset_id", "auc", "plain_auc", "panel_alone_auc", "base_rate", "loss", "accuracy", "epsilon",
    "note", "is_calibrated", "private_minus_plain", "private_minus_panel_alone", "verdict", "leaks",
    "measured_csv", "epsilon_with_measurement", "rows_per_person", "panel",
)  # fmt: skip


# Characters of an error that are shown in a list
_MOST_SHOWN: Final = 80


def describe_runs(project: Project, *, is_short: bool = False) -> list[dict[str, Any]]:
    """Return what a list of runs says of each, oldest first, so that they can be compared.

    `state` is done; or, of a run that is not, `running` while a process runs it, that of its job if that has
    stopped, `stopped` by an error before there was one, or `interrupted`. `why` says in a line what happened
    and what the next run does; empty where the run is done. `dataset_id` is None before there is a dataset,
    and where devices train. With `is_short`, `why` has only the start of an error. `loss` and `accuracy` are
    after calibration where `is_calibrated`; a run that trained no model has neither. `epsilon` is of training
    alone if a model was trained, and of a person if `rows_per_person` is not None. `measured_csv` is the file
    of the sums; None if there are none. `leaks` says how columns tell the label by themselves. What a
    comparison with plain training has is as of `Trained.plain`. `panel` is the digest of the rows that the
    model was tested on; None where it is not known.
    """
    folders = [one for one in (project.folder / "runs").glob("*") if one.name.isdigit()]
    last, process = project.last_run(), running_process(project)
    told = []
    with jobs_of(project) as find_job:
        for folder in sorted(folders, key=lambda one: int(one.name)):
            found: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                found = json.loads((folder / SUMMARY).read_text())
            state, why = "done", ""
            if not found:
                steps = Steps.read(folder)
                state, why = _describe_unfinished(project, folder, steps, find_job, is_short=is_short)
                if steps is not None:
                    found = pick_attributes(steps.options, ("name", "note"))
                    found["dataset_id"] = (steps.done.get("dataset") or {}).get("dataset_id")
                if process is not None and folder == last:
                    state, why = "running", f"process {process} runs it"
            plain = found.get("plain") or {}
            alone = plain.get("panel_alone") or {}
            found["is_calibrated"] = found.get("calibration") is not None
            found["plain_auc"], found["panel_alone_auc"] = plain.get("auc"), alone.get("auc")
            found["private_minus_plain"] = plain.get("private_minus_this")
            found["private_minus_panel_alone"] = alone.get("private_minus_this")
            found["verdict"] = plain.get("verdict")
            found["measured_csv"] = (found.get("measured") or {}).get("csv")
            if (job := find_job(found["job_id"]) if "job_id" in found else None) and job.eval_set_digest:
                found["panel"] = job.eval_set_digest.hex()
            figures = {name: found.get(name) for name in _FIGURES}
            told.append({"run": folder.name, "state": state, **figures, "why": why})
    return told


def warn_of_panels(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a warning of runs, as of `describe_runs`, whose models were tested on other rows; or nothing."""
    by_panel: dict[str, list[str]] = defaultdict(list)
    for one in runs:
        if one["panel"] is not None:
            by_panel[one["panel"]].append(one["run"])
    if len(by_panel) < 2:
        return ""
    which = "; ".join(f"run{'s' * (len(same) > 1)} {', '.join(same)}" for same in by_panel.values())
    return (
        "these runs have different panels, since the table or its settings changed between them: losses, "
        f"accuracies and AUCs compare only on one panel ({which})"
    )


@contextmanager
def jobs_of(project: Project) -> Iterator[Callable[[str], JobRecord | None]]:
    """Give a search for jobs of the project's ad server, which need not run."""
    data = project.parties / "adserver"

    def find(job_id: str) -> JobRecord | None:
        # To look must not make a store where there is none
        if not data.exists():
            return None
        with suppress(JobRefused):
            return server.job(job_id)
        return None

    with LocalAdServer(data=data) as server:
        yield find


def _shorten(error: str) -> str:
    """Return an error's first sentence, and no more of it than a line shows."""
    first = error.partition(". ")[0]
    return first if len(first) <= _MOST_SHOWN else f"{first[: _MOST_SHOWN - 3].rstrip()}..."


def _describe_unfinished(
    project: Project,
    folder: Path,
    steps: Steps | None,
    find_job: Callable[[str], JobRecord | None],
    *,
    is_short: bool,
) -> tuple[str, str]:
    """Return the state of a run that is not done, and why with what helps."""
    then, is_last = describe_next(project, folder), folder == project.last_run()
    new = f"`adserver quickstart run {project.folder}` begins a new run" if is_last else then
    stopped = "" if steps is None else steps.stopped
    job = None if steps is None or "job" not in steps.done else find_job(str(steps.done["job"]))
    if job is None or job.state is JobState.DONE:
        what = (_shorten(stopped) if is_short else stopped) or (
            "" if job is None else f"job {short(job.job_id)} is done, its model not tested"
        )
        return ("stopped" if stopped else "interrupted"), "; ".join(filter(None, (what, then)))
    said = f"job {short(job.job_id)} is {describe_outcome(job)}"
    if job.state not in STOPPED:
        return "interrupted", f"{said}, after {job.progress}; {then}"
    if job.state is JobState.CANCELLED:
        return job.state.value, f"{said} after {job.progress}; {new}"
    if job.stop is not None and job.stop.is_lasting:
        return job.state.value, f"{said}; {'with other settings in lark.toml ' if is_last else ''}{new}"
    before = f"before `adserver job`, run `. {project.environment_file}`"
    return job.state.value, f"{said}; {before}; {'then ' if is_last else ''}{then}"

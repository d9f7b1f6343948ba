"""Data of two helpers and an ad server, made by one version of the product and used by another.

    python tests/upgrade/folder.py make FOLDER
    python tests/upgrade/folder.py use FOLDER

`make` seals datasets, answers a round and a query, and stores reports that wait. `use` opens all of it, asks
the same again, and goes on. Each prints what it found as JSON. A version without this file runs the one of
another with its own modules.
"""

import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from adserver.ingest.intake import Intake
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Measure, QuerySpec
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.rpc.wire import decode_report, encode_report
from maskedlark.runtime.database import open_database
from tests.builders import NOW, shares_for
from tests.helper.parties import ASKED, WEIGHTS, Party, Scene
from tests.maskedlark.query_specs import query

RECORDS = 20
_MEASURED: dict[str, Any] = {"measurement": {"min_cell_count": 2}}
_NOISY: dict[str, Any] = {"mechanism": "gaussian", "epsilon": 4.0, "collusion_epsilon": 40.0, **_MEASURED}


class _Old(Party):
    """A helper whose folder is there already."""

    def __post_init__(self) -> None:
        pass


def make(folder: Path) -> dict[str, Any]:
    """Write everything that a deployment keeps."""
    scene = Scene(folder)
    reports = scene.reports(RECORDS)
    spec = scene.job(scene.commit(scene.prepare(reports)))
    scene.start(spec)
    noisy = scene.tenant("https://other.example", **_NOISY)
    asked = query(
        noisy,
        dataset_id=noisy.seal(_with_measured(noisy)),
        measures=(Measure(value="count", scale=1 << 16),),
        noise_multiplier=8.0,
        threshold_noise_multiplier=8.0,
    )
    kept = {
        "bundle": scene.bundle,
        "noisy bundle": noisy.bundle,
        "job": spec,
        "query": asked,
    }
    for name, value in kept.items():
        (folder / name).write_bytes(encode(value))
    (folder / "reports").write_text("\n".join(encode_report(one).hex() for one in reports))
    _with_intake(folder, scene.bundle, scene.reports(RECORDS, seed=1))
    return {
        "rounds": [_ask(scene, spec, 0)],
        "sum": scene.run(spec, 0).tolist(),
        "query": _query(noisy, asked),
    }


def use(folder: Path) -> dict[str, Any]:
    """Ask the same again, and go on; what an open database says if it is of another version."""
    try:
        scene = _reopened(folder, "bundle")
        waiting = _with_intake(folder, scene.bundle, scene.reports(1, seed=len(list(folder.glob("used*")))))
    except InvalidTask as refused:
        return {"refused": str(refused)}
    (folder / f"used {len(list(folder.glob('used*')))}").touch()
    spec = decode(JobSpec, (folder / "job").read_bytes())
    started = scene.cores[0].jobs.start(encode(spec), _model(), ASKED)
    last = started.rounds_answered - 1
    noisy = _reopened(folder, "noisy bundle")
    reports = [decode_report(bytes.fromhex(one)) for one in (folder / "reports").read_text().split()]
    with scene.cores[0].datasets.prepare(scene.task_id, b"a" * 16, None) as preparation:
        again = preparation.add(shares_for(reports, 0))
    return {
        "rounds": [_ask(scene, spec, last), _ask(scene, spec, last + 1)],
        "sum": scene.run(spec, last + 1).tolist(),
        "query": _query(noisy, decode(QuerySpec, (folder / "query").read_bytes())),
        "used again": int(again.is_admitted.sum()),
        "waiting": waiting,
        "sealed": scene.seal(RECORDS, seed=100 + last).hex(),
    }


def _reopened(folder: Path, bundle: str) -> Scene:
    scene = object.__new__(Scene)
    scene.parties = (_Old(data=folder / "north"), _Old(data=folder / "south"))
    scene.cores = scene.open()
    scene.bundle = decode(TaskBundle, (folder / bundle).read_bytes())
    scene.task, scene.task_id = scene.bundle.task, scene.bundle.task.task_id
    scene.sealer = Sealer(scene.bundle, now=NOW)
    return scene


def _with_measured(scene: Scene) -> list[Any]:
    from maskedlark.reports.report import MeasuredValues

    return [replace(one, measured=MeasuredValues(keys=(), values=())) for one in scene.examples(RECORDS)]


def _model() -> bytes:
    from tests.helper.parties import MODEL

    return MODEL


def _ask(scene: Scene, spec: JobSpec, round_index: int) -> str:
    """A digest of both helpers' answers."""
    for core in scene.cores:
        core.jobs.start(encode(spec), _model(), ASKED)
    return sha256(b"".join(scene.answer(role, spec, round_index, WEIGHTS) for role in (0, 1))).hexdigest()


def _query(scene: Scene, spec: QuerySpec) -> dict[str, Any]:
    answered = [core.queries.answer(spec, lambda _: b"", ASKED) for core in scene.cores]
    return {
        "answers": sha256(b"".join(one.answer for one in answered)).hexdigest(),
        "epsilons": [[one.spent.ad_server, one.spent.colluding] for one in answered],
    }


def _with_intake(folder: Path, bundle: TaskBundle, reports: list[Report]) -> int:
    """Take reports in; how many wait."""
    engine = open_database(default_url(folder))
    try:
        create_tables(engine)
        tasks, stored = TaskStore(engine), ReportStore(engine)
        if tasks.get(bundle.task.task_id) is None:
            tasks.add(bundle, created_at=NOW)
        intake = Intake(tasks, stored, lambda: 0.0)
        for report in reports:
            assert intake.take(report)
        return stored.counts(bundle.task.task_id).waiting
    finally:
        engine.dispose()


if __name__ == "__main__":
    print(json.dumps({"make": make, "use": use}[sys.argv[1]](Path(sys.argv[2]))))

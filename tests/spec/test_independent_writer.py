"""The services take in, admit and sum the reports of a program that was written from docs/spec alone."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import decode_report
from maskedlark.runtime.database import open_database
from tests.builders import NOW, helper_keys, shares_for, world
from tests.helper.parties import NUM_VALUES, Scene, fake_values
from tests.helper.releases.test_queries import BY_PLACE, COUNT, PURCHASE, Shop
from tests.helper.update_parties import UpdateScene
from tests.patience import HANGS_S

WRITER = Path(__file__).with_name("writer.py")
RECORDS = 20
CLASSES: dict[str, Any] = {"labels": {"kind": "classes", "size": 10, "default_label": 3}, "num_decoys": 4}
VALUES: dict[str, Any] = {"labels": {"kind": "values", "size": 101, "num_buckets": 7}, "num_decoys": 3}
LONG: dict[str, Any] = {
    "min_cell_count": 2,
    "values": [{"name": f"value_{number}", "low": -(2**31) + 1, "high": 2**31 - 1} for number in range(3)],
}


@contextmanager
def intake(folder: Path, bundle: TaskBundle, *, of_round: Any = None) -> Iterator[str]:
    """An ad server's intake that knows the task, over HTTP."""
    engine = open_database(default_url(folder))
    create_tables(engine)
    tasks, rounds = TaskStore(engine), RoundStore(engine)
    tasks.add(bundle, created_at=NOW)
    if of_round is not None:
        rounds.open(of_round, b"content", now_s=NOW)
    server = HttpServer(
        http_app(Intake(tasks, ReportStore(engine), lambda: 0.0, rounds), tasks, rounds=rounds),
        "127.0.0.1:0",
        None,
    )
    server.wait_until_started()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()
        engine.dispose()


def written(
    folder: Path, scene: Scene, examples: list[dict[str, Any]], *, of_round: Any = None
) -> list[Report]:
    """What the writer makes of the bundle that the intake serves; each upload is accepted."""
    trusted = [helper.verify_key.hex() for helper in scene.task.helpers]
    with intake(folder, scene.bundle, of_round=of_round) as url:
        served = httpx.get(f"{url}/v1/tasks/{scene.task_id.hex()}", timeout=HANGS_S).content
        (folder / "bundle").write_bytes(served)
        made = run([str(folder / "bundle"), *trusted, str(NOW)], examples)
        assert made.returncode == 0, made.stderr
        uploads = [base64.b64decode(line) for line in made.stdout.splitlines()]
        for upload in uploads:
            assert httpx.post(f"{url}/v1/reports", content=upload, timeout=HANGS_S).status_code == 201
    assert len(uploads) == len(examples)
    return [decode_report(one) for one in uploads]


def run(arguments: list[str], examples: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """In a process of its own that finds no module of the product (-I)."""
    lines = "".join(json.dumps(one) + "\n" for one in examples)
    command = [sys.executable, "-I", str(WRITER), *arguments]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=HANGS_S)


def labelled(scene: Scene, **more: Any) -> list[dict[str, Any]]:
    """Examples of every label; the last one makes a fake report."""
    size, width = scene.task.labels.size, scene.task.num_features
    rows = [
        {"features": [(7 * n + i) % 256 for i in range(width)], "label": n % size, **more}
        for n in range(RECORDS)
    ]
    return [*rows[:-1], {**rows[-1], "label": None}]


def plain_sum(examples: list[dict[str, Any]]) -> list[int]:
    """What both helpers' answers come to: fake reports count for nothing."""
    real = [one for one in examples if one["label"] is not None]
    features = np.array([one["features"] for one in real], np.uint8)
    labels = np.array([[one["label"]] for one in real], np.uint32)
    return [int(value) for value in fake_values(features, labels, NUM_VALUES).sum(axis=(0, 1))]


@pytest.mark.parametrize(
    "changes",
    [{}, {"proof": True}, {"unit": "user", "reports_per_user": 3}],
    ids=["two classes", "proven", "per user"],
)
def test_its_labels_are_summed_in_a_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    scene = Scene(tmp_path, **changes)
    examples = labelled(scene)
    prepared = scene.prepare(written(tmp_path, scene, examples))
    assert prepared.chosen.all()
    spec = scene.job(scene.commit(prepared))
    scene.start(spec)
    assert scene.run(spec, 0).tolist() == plain_sum(examples)


@pytest.mark.parametrize("proof", [False, True])
def test_its_keys_and_values_are_summed_by_a_query(tmp_path: Path, proof: bool) -> None:
    scene = Shop(tmp_path / "others", proof=proof)
    rows = [{"label": n % 2, "keys": [n % 5, n % 3, 0], "values": [1, 9 * n]} for n in range(RECORDS)]
    examples = [{"features": [0] * scene.task.num_features, **row} for row in rows]
    examples[-1] = {**examples[-1], "label": None}
    scene.dataset = scene.commit(scene.prepare(written(tmp_path, scene, examples), handle=b"w" * 16))
    held = [(n % 3, min(100, 9 * n)) for n in range(RECORDS - 1)]  # purchases are clamped to 100
    sums = [[(1 << 16, value << 10) for place, value in held if place == at] for at in range(3)]
    expected = [sum(column) for rows in sums for column in zip(*rows, strict=True)]
    spec = scene.query(measures=(COUNT, PURCHASE), group_by=BY_PLACE, levels=(1,))
    assert scene.total(spec) == [*expected, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        CLASSES,
        VALUES,
        {"feature_epsilon": 2.0, **CLASSES},
        {"proof": True, "measurement": LONG},
        {"proof": True, "labels": {"kind": "classes", "size": 100}, "num_decoys": 99},
    ],
    ids=["few of ten classes", "values", "noisy features", "several polynomials", "a hundred classes"],
)
def test_reports_of_every_form_are_admitted(tmp_path: Path, changes: dict[str, Any]) -> None:
    scene = Scene(tmp_path, **changes)
    more = {"keys": [], "values": [-(2**31) + 1, 0, 2**31 - 1]} if "measurement" in changes else {}
    assert scene.prepare(written(tmp_path, scene, labelled(scene, **more))).chosen.all()


@pytest.mark.parametrize("suite", list(HpkeSuite))
def test_it_seals_by_every_suite(tmp_path: Path, suite: HpkeSuite) -> None:
    scene = Scene(tmp_path)
    of = world(keys=(helper_keys(1, suite), helper_keys(2, suite)))
    scene.bundle, scene.task, scene.task_id = of.bundle, of.task, of.task.task_id
    sealed = written(tmp_path, scene, labelled(scene))
    opened = [of.opener(role).open(shares_for(sealed, role)).admitted for role in (0, 1)]
    assert all(one.is_admitted.all() for one in opened)
    assert (opened[0].view_tags == opened[1].view_tags).all()


def test_its_updates_are_summed(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one, vectors = scene.round(), [vector.tolist() for vector in scene.vectors(4)]
    vectors.append([0] * len(vectors[0]))  # cover
    examples = [{"update": vector, "round": encode(one).decode()} for vector in vectors]
    sealed = written(tmp_path, scene, examples, of_round=one)
    dataset = scene.seal_round(one, sealed)
    assert scene.release(one, dataset).tolist() == np.sum(vectors, axis=0).tolist()


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        (b'"version":1', b'"version":2'),
        (b'"num_decoys":1', b'"num_decoys":01'),
        (b'"origin"', b'"proof":false,"origin"'),
        (b'"epsilon":8.0', b'"epsilon":9.0'),
        (b'"not_after":1099511627776', b'"not_after":1'),
    ],
)
def test_it_refuses_a_bundle_that_was_changed(tmp_path: Path, replaced: bytes, by: bytes) -> None:
    scene = Scene(tmp_path)
    of = world()
    changed = encode(of.bundle).replace(replaced, by)
    assert changed != encode(of.bundle)
    (tmp_path / "bundle").write_bytes(changed)
    trusted = [helper.verify_key.hex() for helper in of.task.helpers]
    made = run([str(tmp_path / "bundle"), *trusted, str(NOW)], labelled(scene))
    assert made.returncode == 1
    assert "Refused" in made.stderr
    assert not made.stdout

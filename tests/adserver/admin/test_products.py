"""Datasets are sealed, and models exported, over the API: by programs, `Client` and commands elsewhere."""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from adserver.admin.guarded_route import PREFIX
from adserver.cli.main import app
from adserver.client import Client
from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from adserver.store.datasets import Dataset
from adserver.store.tasks import TaskStore
from adserver.training.inference import predict
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from tests.adserver.job_world import Site, plan_for, sealed
from tests.adserver.painted import Painted
from tests.builders import NOW
from tests.measured import dataset_of, measuring_world
from tests.patience import HANGS_S

OF = sealed()
RUNNER = CliRunner()
JOB = bytes([0x11]) * 16
WAITING = bytes([0x12]) * 16


@dataclass(frozen=True, kw_only=True)
class There:
    """An ad server with a job that is done and one that waits."""

    of: Painted
    url: str

    def token(self, scope: Scope = Scope.OPERATE) -> str:
        return self.of.grant(GrantKind.TOKEN, scope)

    def far(self) -> Client:
        return Client(url=self.url, token=self.token())


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    folder = Path(tmp_path_factory.mktemp("trained")) / "adserver"
    site = Site(folder, OF)
    TaskStore(site.engine).add(OF.of.bundle, created_at=NOW)
    site.run(plan_for(OF, job_id=JOB, rounds=2))
    site.submit(plan_for(OF, job_id=WAITING, rounds=2))
    site.engine.dispose()
    with ExitStack() as stack:
        of = Painted(folder)
        stack.callback(of.close)
        server = HttpServer(stack.enter_context(of.door()), "127.0.0.1:0", None, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        yield There(of=of, url=f"http://127.0.0.1:{server.port}")


def test_a_model_over_the_api_is_the_model_of_the_job(there: There) -> None:
    headers = {"authorization": f"Bearer {there.token(Scope.READ)}"}
    answer = httpx.get(f"{there.url}{PREFIX}/jobs/11/model", headers=headers, timeout=HANGS_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rounds_done"] == 2
    assert b64decode(answer.json()["model"]) == there.of.client.job("11").export()


@pytest.mark.parametrize("takes", ["scaled", "bytes"])
def test_a_client_elsewhere_exports_the_same_file(there: There, tmp_path: Path, takes: str) -> None:
    with there.far() as far:
        exported = far.job("11").export(tmp_path / "model.onnx", takes=takes)
    assert exported == (tmp_path / "model.onnx").read_bytes()
    assert exported == there.of.client.job("11").export(takes=takes)


def test_an_encoder_that_is_given_is_put_into_the_graph_here(there: There) -> None:
    columns = {f"c{number}": ["1", "2", "3"] for number in range(OF.of.task.num_features)}
    encoder = fit(columns, FitSettings())
    with there.far() as far:
        asked: dict[str, Any] = {"takes": "columns", "encoder": encoder}
        assert far.job("11").export(**asked) == there.of.client.job("11").export(**asked)
        with pytest.raises(InvalidTask, match="encoder"):
            far.job("11").export(takes="columns")


def test_what_cannot_be_exported_is_the_same_refusal(there: There) -> None:
    with there.far() as far, pytest.raises(JobRefused) as refusal:
        far.job("12").export()
    assert refusal.value.reason is JobReason.WRONG_STATE
    headers = {"authorization": f"Bearer {there.token()}"}
    answer = httpx.get(f"{there.url}{PREFIX}/jobs/11/model?takes=words", headers=headers, timeout=HANGS_S)
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")


def test_the_best_weights_are_asked_for_alike_here_and_from_afar(there: There) -> None:
    for at in (there.of.client, there.far()):
        with pytest.raises(JobRefused, match="eval-set") as refusal:
            at.job(JOB.hex()).export(weights="best")
        assert refusal.value.reason is JobReason.WRONG_STATE
        with pytest.raises(JobRefused, match="eval-set"):
            at.job(JOB.hex()).calibrate(panel=__file__, weights="best")


def test_the_command_exports_from_elsewhere_what_it_exports_here(there: There, tmp_path: Path) -> None:
    here = ["--data", str(there.of.folder)]
    elsewhere = ["--url", there.url, "--token", there.token(Scope.READ)]
    told = []
    for name, where in (("here", here), ("elsewhere", elsewhere)):
        out = str(tmp_path / f"{name}.onnx")
        done = RUNNER.invoke(app, ["model", "export", out, "--job", "11", "--with-bytes", *where])
        assert done.exit_code == 0, done.output
        told.append(done.output)
    assert told[0] == told[1]
    assert "2 of 2 rounds" in told[0]
    assert (tmp_path / "here.onnx").read_bytes() == (tmp_path / "elsewhere.onnx").read_bytes()


def test_a_dataset_is_sealed_from_elsewhere_as_it_is_here(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dataset_of(measuring_world(), 12)
    asked: list[tuple[str, dict[str, Any]]] = []

    def seal(task: str = "", **settings: Any) -> Dataset:
        asked.append((task, settings))
        return made

    monkeypatch.setattr(there.of.client.server, "seal", seal)
    with there.far() as far:
        assert far.seal("ab", max_reports=7, allow_small=True) == made
        assert far.seal() == made
    assert asked == [
        ("ab", {"max_reports": 7, "allow_small": True}),
        ("", {"max_reports": None, "allow_small": False}),
    ]


def test_a_seal_that_fails_there_is_the_same_error_here(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (JobRefused(JobReason.DATASET_EMPTY, "no report waits"), HelperUnavailable("it is away")):

        def seal(*_task: str, error: Exception = error, **_settings: Any) -> Dataset:
            raise error

        monkeypatch.setattr(there.of.client.server, "seal", seal)
        with there.far() as far, pytest.raises(type(error), match=str(error)):
            far.seal()
    with there.far() as far, pytest.raises(InvalidTask, match="max_reports"):
        far.seal(max_reports=0)


def test_a_model_is_calibrated_by_a_panel_alike_here_and_from_afar(there: There, tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    features = draw.integers(0, 256, (400, OF.of.task.num_features), np.uint8)
    panel = tmp_path / "panel.npz"
    np.savez(panel, features=features, labels=(features[:, 0] < 56).astype(np.int64))
    made = there.far().job(JOB.hex()).calibrate(tmp_path / "calibrated.onnx", panel=panel)
    assert (tmp_path / "calibrated.onnx").read_bytes() == made.exported.encoded
    chances = 1 / (1 + np.exp(-predict(made.exported.encoded, features)[:, 0].astype(np.float64)))
    assert chances.mean() == pytest.approx(float((features[:, 0] < 56).mean()), rel=0.01)
    here = there.of.client.job(JOB.hex()).calibrate(panel=panel)
    assert (here.scale, here.shift) == (made.scale, made.shift)


@pytest.mark.parametrize("given", [{}, {"evaluation": "ab", "panel": __file__}])
def test_a_calibration_is_by_an_evaluation_or_a_panel(there: There, given: dict[str, str]) -> None:
    for at in (there.of.client, there.far()):
        with pytest.raises(InvalidTask, match="exactly one of evaluation and panel"):
            at.job(JOB.hex()).calibrate(**given)

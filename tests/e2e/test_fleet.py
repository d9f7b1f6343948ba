"""The main job with real processes.

Two helpers, an ad server and browsers, each started by its own command line.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from docs.tutorial import plain
from docs.tutorial.fleet import CommandFailed, Fleet
from tests.fleet_commands import create_model, create_task, seal, send_reports
from tests.patience import HANGS_S

pytestmark = pytest.mark.slow
LAYERS = (30, 8, 1)
LOSS = "binary_cross_entropy_with_logits"
ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A fleet with a sealed dataset of WBCD reports."""

    fleet: Fleet
    task: str
    dataset: str
    panel: Path
    reported: Path
    model: Path

    def submit(self, *more: str) -> Any:
        return self.fleet.adserver_json(
            "job", "submit", "--dataset", self.dataset, "--model", str(self.model), "--loss", LOSS,
            "--rounds", str(ROUNDS),
            "--optimizer", "momentum", "--learning-rate", "0.3", "--eval-set", str(self.panel),
            "--as-it-is", *more, options=False,  # for plain training begins with the same file
        )  # fmt: skip

    def export(self, job: str, name: str) -> bytes:
        out = self.fleet.folder / name
        self.fleet.adserver("model", "export", "--job", job, str(out), options=False)
        return out.read_bytes()

    def show(self, job: str) -> Any:
        return self.fleet.adserver_json("job", "show", job, options=False)

    def await_state(self, job: str, *states: str, at_least: int = 0) -> Any:
        deadline = time.monotonic() + HANGS_S
        while time.monotonic() < deadline:
            shown = self.show(job)
            if shown["state"] in states and shown["rounds_done"] >= at_least:
                return shown
        raise AssertionError(f"job is {shown['state']} at round {shown['rounds_done']}: {shown['cause']}")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder=folder, is_no_noise=True) as fleet:
        task = create_task(
            fleet,
            "e2e",
            "--classes 2 --default-label 0 --num-features 30 --min-batch-size 50 --no-noise --epsilon 1"
            " --clip-norm 1",
        )
        panel, reported = folder / "panel.npz", folder / "reported.npz"
        source = f"--source wbcd --seed 3 --holdout {panel} --train-out {reported}"
        summary = send_reports(fleet, task, source, to=f"http://{fleet.http}")
        dataset = seal(fleet, task)
        assert dataset["admitted"] == summary["accepted"] == summary["reports"]
        model = create_model(fleet, folder / "untrained.onnx", LAYERS, seed=2)
        yield Sealed(
            fleet=fleet, task=task, dataset=dataset["dataset_id"], panel=panel, reported=reported, model=model
        )


@pytest.fixture(scope="module")
def undisturbed(sealed: Sealed) -> bytes:
    """The trained model of a run in which nothing happened."""
    job = sealed.submit("--wait")
    assert job["state"] == "done"
    assert job["rounds_done"] == ROUNDS
    return sealed.export(job["job_id"], "undisturbed.onnx")


def test_training_without_noise_equals_plain_training(sealed: Sealed, undisturbed: bytes) -> None:
    values = [numpy_helper.to_array(one) for one in onnx.load(str(sealed.model)).graph.initializer]
    layers = plain.network(LAYERS, values)
    seen = np.load(sealed.reported)
    plain.train(
        layers,
        seen["features"],
        seen["labels"],
        plain.Training(rounds=ROUNDS, learning_rate=0.3, momentum=0.9, clip_norm=1.0),
    )
    trained = [
        numpy_helper.to_array(one) for one in onnx.load_model_from_string(undisturbed).graph.initializer
    ]
    expected = [parameter.detach().numpy() for layer in layers for parameter in layer.parameters()]
    for got, want, start in zip(trained, expected, values, strict=True):
        moved = np.linalg.norm(want.reshape(-1) - start.reshape(-1))
        shaped = got if got.shape == want.shape else got.T
        assert np.linalg.norm(shaped.reshape(-1) - want.reshape(-1)) < 0.02 * moved + 1e-4
    held = np.load(sealed.panel)
    tested = json.loads(
        sealed.fleet.run("adserver", "model", "evaluate", str(sealed.fleet.folder / "undisturbed.onnx"),
        "--eval-set", str(sealed.panel),
                         "--loss", LOSS, "--json")
    )  # fmt: skip
    assert abs(tested["accuracy"] - plain.accuracy(layers, held["features"], held["labels"])) <= 1 / len(
        held["labels"]
    )


@pytest.mark.long
def test_a_helper_killed_mid_job_makes_the_job_wait_and_changes_nothing(
    sealed: Sealed, undisturbed: bytes
) -> None:
    job = sealed.submit()["job_id"]
    sealed.await_state(job, "running", "done", at_least=1)
    sealed.fleet.kill("helper-1")
    if sealed.show(job)["state"] != "done":
        sealed.await_state(job, "waiting", "done")
    sealed.fleet.start_helper(1)
    assert sealed.await_state(job, "done")["rounds_done"] == ROUNDS
    assert sealed.export(job, "helper-killed.onnx") == undisturbed


@pytest.mark.long
def test_an_ad_server_killed_mid_job_resumes_where_it_was(sealed: Sealed, undisturbed: bytes) -> None:
    job = sealed.submit()["job_id"]
    sealed.await_state(job, "running", "done", at_least=2)
    sealed.fleet.kill("adserver")
    sealed.fleet.start_adserver()
    assert sealed.await_state(job, "done")["rounds_done"] == ROUNDS
    assert sealed.export(job, "adserver-killed.onnx") == undisturbed


def test_curves_are_written_for_tensorboard_and_drawn_for_people(
    sealed: Sealed, undisturbed: bytes, tmp_path: Path
) -> None:
    assert undisturbed
    job = sealed.fleet.adserver_json("job", "list", options=False)[0]["job_id"]
    folder = sealed.fleet.data("adserver") / "jobs" / job
    assert any((folder / "events").iterdir())
    drawn = tmp_path / "curves.png"
    sealed.fleet.adserver("job", "show", job, "--plot", str(drawn), options=False)
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_helper_without_the_debug_flag_refuses_a_task_without_noise(tmp_path: Path) -> None:
    with Fleet(folder=tmp_path) as fleet, pytest.raises(CommandFailed, match="task_refused"):
        create_task(
            fleet,
            "x",
            "--classes 2 --num-features 3 --min-batch-size 50 --no-noise --epsilon 1 --clip-norm 1",
        )


def test_status_and_lists_speak_json(sealed: Sealed, undisturbed: bytes) -> None:
    assert undisturbed
    address = (sealed.fleet.folder / "helper-0.address").read_text()
    status = json.loads(
        sealed.fleet.run("lark-helper", "status", "--address", address, "--insecure", "--json")
    )
    assert status["datasets"] == 1
    seen = sealed.fleet.adserver_json("status")["helpers"]
    assert [one["software_digest"] for one in seen] == 2 * [status["software_digest"]]
    assert sealed.fleet.adserver_json("task", "list", options=False)[0]["task_id"] == sealed.task
    assert sealed.fleet.adserver_json("dataset", "list", options=False)[0]["state"] == "committed"

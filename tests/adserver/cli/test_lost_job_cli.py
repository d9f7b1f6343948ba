"""A job that both helpers hold open and an ad server has lost, as one that was restored from a backup."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import JobSpec
from maskedlark.runtime.database import open_database
from tests.helper.parties import ASKED, MODEL, Scene
from tests.helper.served import served

RUNNER: Final = CliRunner()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(
        tmp_path / "helpers",
        mechanism=Mechanism.GAUSSIAN,
        norm=Norm.L2,
        epsilon=50.0,
        collusion_epsilon=90.0,
    )


@pytest.fixture
def job(scene: Scene) -> JobSpec:
    """A job of which one round is answered; the ad server's copy of its database is from before it."""
    made = scene.job(scene.seal(), noise_multiplier=2.0, rounds=5)
    scene.start(made)
    scene.run(made, 0)
    return made


@pytest.fixture
def reach(tmp_path: Path, scene: Scene) -> Iterator[tuple[str, ...]]:
    folder = tmp_path / "adserver"
    folder.mkdir()
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(scene.bundle, created_at=1_000.0)
    engine.dispose()
    with served(scene.cores[0]) as first, served(scene.cores[1]) as second:
        yield ("--data", str(folder), "--insecure", "--helper-0", first, "--helper-1", second)


def open_jobs(scene: Scene) -> list[int]:
    return [core.status().counts.open_jobs for core in scene.cores]


def test_a_job_that_only_the_helpers_hold_is_closed_by_its_whole_id(
    scene: Scene, job: JobSpec, reach: tuple[str, ...]
) -> None:
    whole = job.job_id.hex()
    unknown = RUNNER.invoke(app, ["job", "cancel", whole, "--data", reach[1]])
    assert f"`adserver job close {whole}`" in str(unknown.exception)
    short = RUNNER.invoke(app, ["job", "close", whole[:12], *reach])
    assert "expected a whole id" in str(short.exception)
    assert open_jobs(scene) == [1, 1]
    for _ in range(2):
        done = RUNNER.invoke(app, ["job", "close", whole, *reach])
        assert done.exit_code == 0, (done.output, done.exception)
        assert "closed at both helpers; 1 round stays charged there" in done.output
        assert open_jobs(scene) == [0, 0]
    listed = RUNNER.invoke(app, ["audit", "list", "--json", "--data", reach[1]]).output
    assert "cancel_job" in listed
    assert whole in listed


def test_a_job_that_no_helper_holds_is_refused(scene: Scene, job: JobSpec, reach: tuple[str, ...]) -> None:
    refused = RUNNER.invoke(app, ["job", "close", "ab" * 16, *reach])
    assert "no helper knows a job " + "ab" * 16 in str(refused.exception)
    assert open_jobs(scene) == [1, 1]


def test_a_job_that_one_helper_alone_holds_is_closed_there(scene: Scene, reach: tuple[str, ...]) -> None:
    """Its start had not reached the other one."""
    spec = scene.job(scene.seal(), noise_multiplier=2.0, rounds=5)
    scene.cores[1].jobs.start(encode(spec), MODEL, ASKED)
    done = RUNNER.invoke(app, ["job", "close", spec.job_id.hex(), *reach])
    assert "0 rounds stay charged" in done.output
    assert open_jobs(scene) == [0, 0]

"""Evidence of releases through every step: asked for, exported, verified by somebody without a network."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client.local import LocalAdServer
from adserver.collecting.evidence import collect_evidence
from adserver.messages.evidence import EvidenceMessage
from adserver.peers.client import HelperClient
from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.runtime.database import open_database
from tests.helper.parties import Scene
from tests.helper.served import served
from tests.refusals import refused

RUNNER: Final = CliRunner()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = Scene(
        tmp_path_factory.mktemp("helpers"),
        name="\x1b[2Jtask",
        mechanism=Mechanism.GAUSSIAN,
        norm=Norm.L2,
        epsilon=50.0,
        collusion_epsilon=90.0,
    )
    job = made.job(made.seal(), noise_multiplier=2.0)
    made.start(job)
    made.run(job, 0)
    for core in made.cores:
        core.jobs.close(canonical.encode(job), None)
    return made


@pytest.fixture(scope="module")
def addresses(scene: Scene) -> Iterator[tuple[str, str]]:
    with served(scene.cores[0]) as first, served(scene.cores[1]) as second:
        yield first, second


@pytest.fixture
def folder(tmp_path: Path, scene: Scene) -> Path:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    TaskStore(engine).add(scene.bundle, created_at=1_000.0)
    engine.dispose()
    return tmp_path


def ran(*command: str | Path) -> str:
    done = RUNNER.invoke(app, [str(one) for one in command], env={"COLUMNS": "250"})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_evidence_is_listed_exported_and_verified_offline(
    folder: Path, scene: Scene, addresses: tuple[str, str]
) -> None:
    reach = ("--data", folder, "--insecure", "--helper-0", addresses[0], "--helper-1", addresses[1])
    (listed,) = json.loads(ran("statement", "list", "--json", *reach))
    assert (listed["kind"], listed["answers"], listed["is_final"]) == ("job", 1, True)
    assert listed["epsilon_before"] == 0.0
    assert 0.0 < listed["epsilon_after"] < listed["collusion_epsilon_after"] < 90.0
    assert listed["is_within_budget"]
    assert listed["signed_by"] == ["north", "south"]
    assert "gaussian 2" in ran("statement", "list", *reach)
    ran("statement", "export", *reach, "--out", folder / "evidence")
    ran("statement", "export", *reach, "--out", folder / "evidence")  # the same file again
    (path,) = (folder / "evidence").iterdir()
    keys = [one.fingerprint for one in scene.task.helpers]
    known = [each for one in keys for each in ("--helper", one.upper())]
    assert json.loads(ran("statement", "verify", path, "--json", *known)) == [listed]
    said = ran("statement", "verify", path)
    assert "the signatures hold" in said
    assert keys[0] in said
    assert "collusion_epsilon_before  0.0\n" in said
    assert re.search(r"\ncharged_at +20\d\d-\d\d-\d\d \d\d:\d\d UTC\n", said)
    assert "\x1b" not in said
    assert r"\x1b[2Jtask" in said
    with pytest.raises(InvalidTask, match="fingerprint"):
        RUNNER.invoke(app, ["statement", "verify", str(path), *known[:2]], catch_exceptions=False)
    path.write_bytes(path.read_bytes().replace(b'"answers":1', b'"answers":2', 1))
    with pytest.raises(InvalidTask, match="did not sign this statement"):
        RUNNER.invoke(app, ["statement", "verify", str(path), *known], catch_exceptions=False)


def test_evidence_travels_over_the_api_and_is_verified_when_it_arrives(
    folder: Path, addresses: tuple[str, str]
) -> None:
    engine = open_database(default_url(folder))
    first, second = (HelperClient(one, None, 60.0) for one in addresses)
    with LocalAdServer.over(engine, (first, second), data=folder) as server:
        (evidence,) = server.statements()
    message = EvidenceMessage.of(evidence)
    assert EvidenceMessage.model_validate_json(message.model_dump_json()).value() == evidence
    forged = message.model_copy(update={"evidence": message.evidence.replace('"answers":1', '"answers":2')})
    with pytest.raises(InvalidTask):
        forged.value()
    first.close()
    second.close()


def test_a_helper_that_shows_the_other_ones_statements_is_not_believed(
    scene: Scene, addresses: tuple[str, str]
) -> None:
    with HelperClient(addresses[0], None, 60.0) as first, refused(JobReason.BAD_ANSWER, "of role 0, not 1"):
        collect_evidence((first, first), scene.bundle)


def test_what_is_no_statement_says_which_file_to_give(tmp_path: Path) -> None:
    folder, empty, binary = (tmp_path / name for name in ("evidence", "empty", "binary"))
    folder.mkdir()
    empty.touch()
    binary.write_bytes(bytes(range(256)))
    for path, expected in (
        (
            folder,
            r"is a folder: give the files that `adserver statement export` wrote there, .*/evidence/\*\.json",
        ),
        (empty, "is no statement: give a file that `adserver statement export` wrote"),
        (binary, "is no statement: give a file that `adserver statement export` wrote"),
        (tmp_path / "gone", "No such file"),
    ):
        with pytest.raises(InvalidTask, match=expected):
            RUNNER.invoke(app, ["statement", "verify", str(path)], catch_exceptions=False)

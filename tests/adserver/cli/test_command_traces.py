"""Commands that ask helpers wait for them as asked, and trace what they do beside their result.

`tests/e2e/test_canaries.py` follows a trace further.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client.local import LocalAdServer
from adserver.client.local_measuring import LocalMeasuring
from adserver.peers.connect import Peers
from adserver.peers.retrying import BRIEF, LONG, Backoff
from adserver.store.tasks import TaskStore

RUNNER = CliRunner()
COMMANDS = ("aggregate", "evaluate")
_ADSERVER = Path(sys.executable).parent / "adserver"


def said(folder: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """What a command says that finds no such query."""
    options = [
        "--data",
        str(folder),
        "--helper-0",
        "127.0.0.1:1",
        "--helper-1",
        "127.0.0.1:2",
        "--insecure",
        "--again",
        "abcd",
        *more,
    ]
    return subprocess.run([str(_ADSERVER), command, *options], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_span_goes_to_standard_error_and_names_no_detail_of_its_failure(
    tmp_path: Path, command: str
) -> None:
    done = said(tmp_path, command, "--traces", "console")
    assert done.returncode == 1
    assert not done.stdout
    spans = done.stderr[: done.stderr.rindex("}")]
    assert f'"name": "{command}"' in spans
    assert '"description": "JobRefused"' in spans
    assert "abcd" not in spans


def test_nothing_is_traced_unless_asked_for(tmp_path: Path) -> None:
    assert "span_id" not in said(tmp_path, COMMANDS[0]).stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("more", "longest"), [([], BRIEF), (["--wait"], LONG)])
def test_a_command_waits_for_helpers_as_long_as_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, more: list[str], longest: Backoff
) -> None:
    monkeypatch.setattr(Peers, "open", lambda *_: (None, None))
    reach = ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure", "--again", "abcd"]
    made: list[LocalAdServer] = []

    def entered(server: LocalAdServer) -> LocalAdServer:
        made.append(server)
        return server

    monkeypatch.setattr(LocalAdServer, "__enter__", entered)
    RUNNER.invoke(app, [command, "--data", str(tmp_path), *reach, *more])
    (server,) = made
    monkeypatch.setattr(LocalMeasuring, "_task", lambda *_: None)
    monkeypatch.setattr(TaskStore, "encoder", lambda *_: None)
    dataset: Any = SimpleNamespace(task_id=b"", dataset_id=b"")
    for asker in (server.measuring.measurer(dataset), server.measuring.evaluator(dataset)):
        assert asker.backoff.give_up_after_s == longest.give_up_after_s

"""Commands that ask helpers trace what they do, beside their result and not in it.

`tests/e2e/test_canaries.py` follows a trace further.
"""

import subprocess
import sys
from pathlib import Path

import pytest

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

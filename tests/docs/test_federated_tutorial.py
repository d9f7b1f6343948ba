"""The federated tutorial's commands, run as a person would: one shell, from top to bottom."""

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.docs.reading import in_one_shell

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "federated.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("7100", "7101", "7200", "7201")


@pytest.mark.page
@pytest.mark.slow
def test_the_federated_tutorial_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(
        BLOCK.findall(TUTORIAL.read_text())
    )
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    for port, one in zip(PORTS, sockets, strict=True):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{one.getsockname()[1]}")
        one.close()
    # A person waits for a server's first line before typing on; a script waits for its port.
    waiting = "until (exec 3<>/dev/tcp/$1) 2>/dev/null; do sleep 0.1; done"
    listening = re.compile(r"^(.*(?:--listen|--http-listen) (127\.0\.0\.1):(\d+).* &)$", re.MULTILINE)
    script = f"await() {{ {waiting}; }}\n" + listening.sub(r"\1\nawait \2/\3", script)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = in_one_shell(script, folder=tmp_path, environment=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "play" / "trained.onnx").exists()
    assert "a person in task 'visits at home': 30 devices" in done.stdout
    assert "90 updates accepted" in done.stdout
    assert "60 updates accepted" in done.stdout

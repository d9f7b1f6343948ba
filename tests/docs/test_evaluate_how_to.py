"""The commands and Python of the how-to on evaluation, run as a person would.

One shell, from top to bottom.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "evaluate.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("7100", "7101", "7200", "7201")
DATA = Path(os.environ.get("MASKEDLARK_DATA", ROOT.parent / "shared" / "data"))


@pytest.mark.slow
def test_the_how_to_on_evaluation_runs_from_top_to_bottom(tmp_path: Path) -> None:
    if not (DATA / "online_shoppers_intention.csv").exists():
        pytest.skip(f"{DATA} does not hold the sessions")
    parts = [
        text if kind == "bash" else f"python - <<'PYTHON'\n{text}PYTHON\n"
        for kind, text in BLOCK.findall(HOW_TO.read_text())
    ]
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(parts)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    for port, one in zip(PORTS, sockets, strict=True):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{one.getsockname()[1]}")
        one.close()
    # A person waits for a server's first line before typing on; a script waits for its port.
    waiting = "until (exec 3<>/dev/tcp/$1) 2>/dev/null; do sleep 0.1; done"
    listening = re.compile(r"^(.*(?:--listen|--http-listen) (127\.0\.0\.1):(\d+).* &)$", re.MULTILINE)
    script = f"await() {{ {waiting}; }}\n" + listening.sub(r"\1\nawait \2/\3", script)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MASKEDLARK_DATA": str(DATA),
    }
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.search(r"AUC (0\.\d+), between (0\.\d+) and ([01]\.\d+)", done.stdout)
    assert found is not None, done.stdout
    assert 0.6 < float(found[2]) < float(found[1]) < float(found[3])
    assert (tmp_path / "shop" / "curves.png").stat().st_size > 20_000

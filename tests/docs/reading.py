"""A page's blocks, run as a reader would: pasted into one plain shell, from top to bottom, with nothing set.

The tests add nothing to a page but ports that are free. `HOME`, and a `PATH` that holds the installed
commands first as `. .venv/bin/activate` makes it, are all that the shell has.
"""

import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS: Final = ("7100", "7101", "7200", "7201")
_PLAIN_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_LONGEST_S: Final = 3_000
"""Nobody waits so long: it ends a page that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a page's blocks came to."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> str:
        """Standard output; AssertionError with what was said if a block failed."""
        assert self.returncode == 0, self.stdout[-3000:] + self.stderr[-5000:]
        return self.stdout


def blocks(page: Path) -> list[str]:
    """What a reader pastes into a shell: bash as it is, Python as a program on standard input."""
    return [
        text if kind == "bash" else f"python - <<'PYTHON'\n{text}PYTHON\n"
        for kind, text in BLOCK.findall(page.read_text())
    ]


def read(page: Path, folder: Path, *, home: Path | None = None) -> Reading:
    """Paste every block of a page into one shell in an empty folder; the first that fails ends it."""
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + "\n".join(blocks(page))
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    home = home or folder / "home"
    home.mkdir(exist_ok=True)
    commands = Path(sys.executable).parent
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=folder,
        env={"HOME": str(home), "PATH": f"{commands}:{_PLAIN_PATH}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    return Reading(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listened on a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports

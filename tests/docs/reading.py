"""A page's blocks, run as a reader would: in a fresh clone and a plain shell, with nothing set.

All that the shell has is `HOME` and a `PATH` without our commands. The page itself activates the environment.
A test adds nothing but ports that are free. In the quick form the clone's `.venv` is made from the one that
runs the tests, so that a page's `make setup` finds nothing to do; `python -m tests.docs.pages` (`make pages`)
really sets up, and reads with no loop compiled and a machine that is busy.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adserver.quickstart.ports import free_ports

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS: Final = ("7100", "7101", "7200", "7201", "7300")
PLAIN_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_S: Final = 3_000
"""Nobody waits so long: it ends a page that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a page's blocks came to.

    Attributes:
        clone: The folder in which they ran.
    """

    clone: Path
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


def clone_into(folder: Path) -> Path:
    """A copy of every file that git knows or would add, as a clone of the next commit has them."""
    listed = subprocess.run(
        [shutil.which("git") or "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    clone = folder / "clone"
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    return clone


def with_environment(clone: Path) -> Path:
    """Give a clone a `.venv` with what is installed here, and the loops that are compiled here."""
    environment = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    installed = Path(sysconfig.get_path("purelib"))
    own = environment / installed.relative_to(Path(sys.prefix))
    (own / "clone.pth").write_text(f"{clone}\n{installed}\n")
    for program in ("lark", "lark-helper", "adserver", "browser-sim"):
        shutil.copy(Path(sys.executable).parent / program, environment / "bin" / program)
        script = (environment / "bin" / program).read_text().splitlines(keepends=True)
        (environment / "bin" / program).write_text(f"#!{environment}/bin/python\n" + "".join(script[1:]))
    for extras in (
        "",
        "-quickstart",
        "-quickstart,torch",
    ):  # make's stamps, newer than every file of the clone
        (environment / f".installed{extras}").touch()
    compiled = ROOT / "helper" / "gradient" / "exact" / "__pycache__"
    for folder in compiled.glob("exact-*"):
        shutil.copytree(folder, clone / folder.relative_to(ROOT))
    return clone


def read(page: str, clone: Path) -> Reading:
    """Paste every block of a page (its path in the clone) into one shell; the first that fails ends it."""
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + "\n".join(
        blocks(clone / page)
    )
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    home = clone.parent / "home"
    home.mkdir(exist_ok=True)
    python = Path(sys.executable).resolve().parent  # `python3` of make, where the system has none
    done = in_one_shell(
        script, folder=clone, environment={"HOME": str(home), "PATH": f"{PLAIN_PATH}{os.pathsep}{python}"}
    )
    return Reading(clone=clone, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def in_one_shell(
    script: str, *, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script of bash to its end; whatever it started in the background ends with it in any case.

    Raises:
        subprocess.TimeoutExpired: it hangs.
    """
    with subprocess.Popen(
        ["/bin/bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, complained = shell.communicate(timeout=_LONGEST_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(shell.args, shell.returncode, said, complained)


def run_mixed(page: str) -> list[str]:
    """Run a page's blocks of Python and bash, in order, in this folder; return what each of bash printed."""
    known: dict[str, object] = {}
    shown = []
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's exporters warn about themselves
                exec(text, known)  # noqa: S102 # the page's own
            continue
        done = subprocess.run(
            ["/bin/bash", "-c", text],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    return shown

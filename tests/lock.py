"""`make lock`: rewrite constraints.txt, with a version and the hashes of all its files for each package.

The packages are what pyproject.toml names, with every extra and what builds the wheel, what these need on any
system from Python 3.11 on, and pip itself. A version that is there stays unless it no longer fits: `make lock
ARGS=--upgrade` takes the newest ones, `ARGS="--upgrade-package NAME"` one. pip takes the file as constraints
and refuses what has no hash there (`--require-hashes`): each environment installs only what it needs of it.
"""

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "constraints.txt"
INSTALLER: Final = "pip"
_HEADER: Final = """\
# The only files that `make`, the images and CI install. Written by `make lock`; tests/lock.py says how.
"""
_TORCH: Final = "torch==2.13.0"
_CPU_BUILDS: Final = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311 x86_64
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # cp311 aarch64
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # cp312 x86_64
    "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # cp312 aarch64
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # cp313 x86_64
    "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # cp313 aarch64
    "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",  # cp314 x86_64
    "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",  # cp314 aarch64
)
"""Of torch-2.13.0+cpu-*-manylinux_2_28_*.whl at https://download.pytorch.org/whl/cpu/torch/.

PyPI does not have these: its files for Linux bring gigabytes of CUDA.
"""


def requirements() -> list[str]:
    """Return what pyproject.toml asks for with every extra, what builds the wheel, and the installer."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = read["project"]
    extras = project["optional-dependencies"].values()
    return sorted(
        {
            *read["build-system"]["requires"],
            *project["dependencies"],
            *(one for extra in extras for one in extra if not one.startswith(f"{project['name']}[")),
            INSTALLER,
        }
    )


def lock(*options: str) -> None:
    """Rewrite constraints.txt.

    Args:
        options: Further options of `uv pip compile`.

    Raises:
        CalledProcessError: uv finds no versions that fit; it has said why.
    """
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    command = [str(uv), "pip", "compile", "-", "--output-file", str(LOCK), "--generate-hashes", *options]
    shape = ["--universal", "--python-version", "3.11", "--fork-strategy", "fewest"]
    plain = ["--no-header", "--no-annotate", "--no-build", "--quiet", "--no-config", "--system-certs"]
    asked = "\n".join(requirements())
    subprocess.run([*command, *shape, *plain], cwd=ROOT, check=True, text=True, input=asked)
    LOCK.write_text(_HEADER + _with_cpu_builds(LOCK.read_text()))


def _with_cpu_builds(text: str) -> str:
    """Add the hashes of torch's builds without CUDA to those of PyPI's files."""
    found = re.search(rf"^{re.escape(_TORCH)} \\\n((?:    --hash=sha256:\S+(?: \\)?\n)+)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"constraints.txt holds no {_TORCH}: give _CPU_BUILDS the hashes of its version")
    hashes = sorted({*re.findall("sha256:([0-9a-f]{64})", found[1]), *_CPU_BUILDS})
    block = " \\\n".join(f"    --hash=sha256:{digest}" for digest in hashes) + "\n"
    return text[: found.start(1)] + block + text[found.end(1) :]


def pins(text: str) -> dict[str, str]:
    """Return each requirement of a lock by its name, with its hashes, as one line."""
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    return {line.partition("==")[0]: line for line in lines if line and not line.startswith("#")}


if __name__ == "__main__":
    lock(*sys.argv[1:])

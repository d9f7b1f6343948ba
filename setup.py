"""Builds what pyproject.toml says, and brings the helper's compiled loops along where they can be made.

A wheel that is built where the helper's packages are installed (`make dist`) holds the machine code of the
exact path's loops, for processors with AVX2, those with AVX-512 if it was built on one, and the Python and
numba that built it: `helper/.../loops`. A helper with these does not compile at its first start. Elsewhere
they are left out, or not used.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_WARM_UP = "from helper.serving.warmup import warm_up_for_others; warm_up_for_others()"


class BuildWithLoops(build_py):
    """Copies the packages, then runs the copy's own `warm_up_for_others`."""

    def run(self) -> None:
        """As setuptools does it; an editable installation keeps its loops beside Python's cache."""
        super().run()
        if not self.editable_mode:
            _compile(Path(self.build_lib).resolve())


def _compile(package: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(package / "helper" / "gradient" / "exact" / "loops"),
    }
    done = subprocess.run(  # noqa: S603 # our own program
        [sys.executable, "-c", _WARM_UP], cwd=package, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        sys.stderr.write("note: the helper's packages are not here, so compiled loops are left out\n")


setup(cmdclass={"build_py": BuildWithLoops})

"""What is committed under dist/ is what the sources make, byte for byte, and draws no weak randomness."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.browser_sim.js.site import DIST
from tests.programs import NODE_REQUIRED, find_program

JS: Final = DIST.parent
CORE: Final = 18_000
HYBRID: Final = 30_000
PATIENCE_S: Final = 1_200


def packed(*names: str) -> int:
    return sum(len(gzip.compress(file.read_bytes(), 9)) for name in names for file in DIST.glob(name))


def is_rebuilt(npm: str) -> bool:
    """Whether a build from the sources, elsewhere, with packages from the registry, gives the same bytes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("package.json", "package-lock.json", "build.mjs", "tsconfig.json"):
            shutil.copy(JS / one, folder)
        shutil.copytree(JS / "src", folder / "src")
        for command in (
            "ci --no-audit --no-fund --prefer-offline --fetch-retries=5",
            "run check",
            "run build",
        ):
            subprocess.run([npm, "--silent", *command.split()], cwd=folder, check=True, timeout=PATIENCE_S)
        built = {file.name: file.read_bytes() for file in (folder / "dist").iterdir()}
    return built == {file.name: file.read_bytes() for file in DIST.iterdir()}


@pytest.mark.timeout(2 * PATIENCE_S)
def test_dist_is_rebuilt_byte_for_byte() -> None:
    assert is_rebuilt(find_program("npm", variable="NPM", required=NODE_REQUIRED, package="Node.js 20"))


def test_pages_load_little() -> None:
    """The core with sealing; the hybrid's code is loaded by the tasks that need it."""
    assert 0 < packed("core.js", "chunk-*.js") <= CORE
    assert 0 < packed("further_suites-*.js") <= HYBRID
    assert 0 < packed("stub.js") <= 1024


def test_no_weak_randomness_is_in_dist() -> None:
    files = list(DIST.glob("*.js"))
    assert files
    assert not [file.name for file in files if b"Math.random" in file.read_bytes()]
    assert any(b"getRandomValues" in file.read_bytes() for file in files)


def test_the_licences_of_what_is_bundled_go_along() -> None:
    said = (DIST / "LICENSES.txt").read_text()
    packages = json.loads((JS / "package.json").read_text())["dependencies"]
    assert packages
    assert all(f"{name} {version}\n" in said for name, version in packages.items())

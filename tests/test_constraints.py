"""constraints.txt: everything that `make` and images install, by hash, on the oldest Python too."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distributions, metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.lock import LOCK, ROOT, pins, requirements

PINS: Final = pins(LOCK.read_text())
PINNED: Final = {name: Requirement(line.partition(" --hash")[0]) for name, line in PINS.items()}
PROJECT: Final = "masked-lark"


def pinned_version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "=="
    return only.version


def test_each_pin_is_one_version_with_hashes() -> None:
    for name, line in PINS.items():
        requirement, *hashes = line.split(" --hash=")
        assert canonicalize_name(Requirement(requirement).name) == name
        assert pinned_version(Requirement(requirement)) != ""
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


def test_the_lock_holds_what_every_extra_asks_for() -> None:
    for requirement in map(Requirement, requirements()):
        pin = PINNED[canonicalize_name(requirement.name)]
        assert pinned_version(pin) in requirement.specifier, requirement


def test_the_lock_holds_what_its_packages_need() -> None:
    """What is installed here says what it needs."""
    missing = {
        f"{name} needs {needed}"
        for name in PINNED
        for needed in map(Requirement, _needs(name))
        if (needed.marker is None or needed.marker.evaluate({"extra": ""}))
        and canonicalize_name(needed.name) not in PINNED
    }
    assert missing == set()


def _needs(name: str) -> list[str]:
    try:
        return list(metadata(name).json.get("requires_dist", []))
    except PackageNotFoundError:
        return []


def test_what_is_installed_here_is_what_the_lock_says() -> None:
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in distributions()}
    found = {
        f"{name} {version}"
        for name, version in installed.items()
        if name != PROJECT
        and (name not in PINNED or pinned_version(PINNED[name]) != version.partition("+")[0])
    }
    assert found == set()


def test_each_pinned_version_runs_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a pin that needs 3.11.5 ends its `make demo` with a resolver's error."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = SpecifierSet(project["requires-python"])
    looked_at, wrong = 0, []
    for name in PINNED:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue
        looked_at += 1
        needs = str(found.json.get("requires_python", ""))
        if f"{oldest.version}.0" not in SpecifierSet(needs):
            wrong.append(f"{name} {found['Version']} needs Python {needs}")
    assert wrong == []
    elsewhere = sum(name.startswith(("nvidia-", "cuda-", "triton")) for name in PINNED)
    assert looked_at > (len(PINS) - elsewhere) * 0.9


def test_nothing_is_fetched_without_its_hash() -> None:
    """Every line that runs pip takes hashed files of ready packages, or no file of an index at all."""
    for path in ("Makefile", "docker/install.sh", "docker/Dockerfile", ".ci/run", "tests/docker/helm.py"):
        text = (ROOT / path).read_text().replace("$hashed", "--require-hashes --only-binary :all:")
        for line in text.replace('":all:"]\n', "").splitlines():
            if re.search(r"pip\W+ .*\b(install|download|wheel)\b|-m pip\b", line) and not line.startswith(
                "#"
            ):
                hashed = "--require-hashes" in line and "--only-binary" in line
                assert hashed or "--no-index" in line, f"{path}: {line}"


def test_each_package_of_npm_has_its_hash() -> None:
    """`npm ci` compares them."""
    packages = json.loads((ROOT / "browser_sim/js/package-lock.json").read_text())["packages"]
    project = packages.pop("")
    assert len(packages) >= len(project["dependencies"]) + len(project["devDependencies"])
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())


def forged(name: str, version: str, folder: Path, metadata: str = "") -> None:
    """Put a package of this name there, which pip takes for whole, with further lines of its metadata."""
    stem = f"{name}-{version}"
    files = {
        f"{name}/__init__.py": b"forged = True\n",
        f"{stem}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode()
        ),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for path, content in files.items()
    )
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")


def test_make_setup_refuses_an_index_that_gives_another_file(tmp_path: Path) -> None:
    """The first package that it fetches is pip, of the lock's version, and forged."""
    for path in ("Makefile", "pyproject.toml", "constraints.txt", "docker/requirements.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    forged("pip", pinned_version(PINNED["pip"]), tmp_path)
    ran = subprocess.run(
        [shutil.which("make") or "make", "setup", f"PYTHON={sys.executable}"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode
    assert "DO NOT MATCH THE HASHES" in ran.stderr


@pytest.mark.parametrize("given", ["0" * 64, ""])
def test_a_package_that_another_one_needs_is_refused_without_its_hash(tmp_path: Path, given: str) -> None:
    """As `make setup` and the images install: requirements without versions, hashes in the constraints."""
    forged("forged", "1.0", tmp_path)
    constraints, asked = tmp_path / "constraints.txt", tmp_path / "asked.txt"
    constraints.write_text(f"forged==1.0{given and f' --hash=sha256:{given}'}\n")
    asked.write_text("forged>=1\n")
    flags = ["--require-hashes", "--only-binary", ":all:", "--no-index", "--find-links", str(tmp_path)]
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", *flags, "--target", str(tmp_path / "into")),
            *("--constraint", str(constraints), "--requirement", str(asked)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode
    assert ("DO NOT MATCH THE HASHES" if given else "must have their versions pinned") in ran.stderr
    assert not (tmp_path / "into").exists()

"""`make release`: everything that a release consists of, in one folder, made without a service.

    make release ARGS="--out FOLDER [--key KEY.pem]"

The folder then holds the wheel and the source distribution (built twice, with equal bytes), the lock of every
package that they may install, a bill of materials in CycloneDX, the changelog's part, `SHA256SUMS`, and with
a key its Ed25519 signature `SHA256SUMS.sig`. A user checks both with standard tools:

    openssl pkeyutl -verify -pubin -inkey KEY.pub -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig
    sha256sum --check SHA256SUMS
"""

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docker.bill_of_materials import PROJECT, bill
from tests.installed import ROOT, check_metadata, check_same_bytes, packed, packed_elsewhere
from tests.lock import LOCK

SUMS = "SHA256SUMS"


def release(out: Path, key: Path | None = None) -> list[Path]:
    """Make a release in a new folder, and return its files.

    Args:
        out: The folder; it is made, and must not exist.
        key: An Ed25519 private key in unencrypted PEM, readable by this user only; None: not signed.

    Raises:
        SystemExit: the folder exists, two builds differ, the changelog lacks the version, or the key is none.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    signer = None if key is None else read_key(key)
    notes = changes((ROOT / "CHANGELOG.md").read_text(), version)
    if out.exists():
        raise SystemExit(f"{out} exists: name a folder that does not")
    packages = packed(ROOT, out, PYTHONHASHSEED="1")
    with tempfile.TemporaryDirectory(prefix="maskedlark-packed-") as name:
        check_same_bytes(packages, packed_elsewhere(ROOT, Path(name)))
    for package in packages:
        check_metadata(package)
    (out / f"masked_lark-{version}.lock.txt").write_bytes(LOCK.read_bytes())
    contents = json.dumps(bill(needed(f"{PROJECT}[all]")), indent=1)
    (out / f"masked_lark-{version}.cdx.json").write_text(contents + "\n")
    (out / "CHANGES.md").write_text(notes)
    sums = checksums(out)
    (out / SUMS).write_bytes(sums)
    if signer is not None:
        (out / f"{SUMS}.sig").write_bytes(signer.sign(sums))
    return sorted(out.iterdir())


def changes(changelog: str, version: str) -> str:
    """Return the changelog's part of a version, without its heading.

    Raises:
        SystemExit: the changelog has no such part.
    """
    heading = rf"^## \[?{re.escape(version)}\]?(?: [^\n]*)?\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no part '## {version}': write it before the release")
    return found[1].strip() + "\n"


def needed(requirement: str) -> Iterator[Distribution]:
    """Yield the installed packages that a requirement needs on this platform, each once.

    Raises:
        SystemExit: one is not installed here.
    """
    waiting, seen, names = [Requirement(requirement)], set[tuple[str, str]](), set[str]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed: run make setup") from None
        if name not in names:
            names.add(name)
            yield found
        for extra in {"", *one.extras} - {extra for of, extra in seen if of == name}:
            seen.add((name, extra))
            every = map(Requirement, found.requires or ())
            waiting += [new for new in every if new.marker is None or new.marker.evaluate({"extra": extra})]


def checksums(folder: Path) -> bytes:
    """Return the SHA-256 of each file of a folder, in the format of `sha256sum`."""
    lines = [f"{sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(folder.iterdir())]
    return "".join(lines).encode()


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read the key that signs a release.

    Raises:
        SystemExit: it is not an Ed25519 private key in unencrypted PEM; nothing of it is shown.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SystemExit(
            f"{path} is not an Ed25519 private key in PEM: openssl genpkey -algorithm ed25519 -out KEY.pem"
        )
    return key


def main() -> None:
    """Read the options, and print the checksums."""
    parser = argparse.ArgumentParser(prog="make release", description="Make a release in a folder.")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist")
    parser.add_argument("--key", type=Path, help="Ed25519 private key in PEM that signs the checksums")
    options = parser.parse_args()
    release(options.out.resolve(), options.key)
    sys.stdout.write((options.out / SUMS).read_text())


if __name__ == "__main__":
    main()

"""What `make release` adds to the two packages; `make dist` builds and compares these."""

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installed import check_metadata
from tests.release import changes, checksums, needed, read_key

CHANGELOG = "# Changelog\n\n## 1.1.0 (2027-01-01)\n\n- new\n\n## 1.0.0\n\n- old\n"


def openssl(*arguments: str, folder: Path) -> str:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S607 # the system's
    return done.stdout


def test_openssl_and_sha256sum_verify_a_release(tmp_path: Path) -> None:
    openssl("genpkey", "-algorithm", "ed25519", "-out", "key.pem", folder=tmp_path)
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "key.pub", folder=tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "one.whl").write_bytes(b"wheel")
    sums = checksums(out)
    (out / "SHA256SUMS").write_bytes(sums)
    (tmp_path / "sig").write_bytes(read_key(tmp_path / "key.pem").sign(sums))
    verify = [
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "key.pub",
        "-rawin",
        "-in",
        "out/SHA256SUMS",
        "-sigfile",
        "sig",
    ]
    assert "Verified Successfully" in openssl(*verify, folder=tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True)  # noqa: S607 # the system's
    (out / "SHA256SUMS").write_bytes(sums.replace(b"one", b"two"))
    with pytest.raises(subprocess.CalledProcessError):
        openssl(*verify, folder=tmp_path)


def test_a_file_that_is_no_key_is_refused_without_its_text(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("SECRET")
    with pytest.raises(SystemExit, match="is not an Ed25519 private key") as refused:
        read_key(tmp_path / "key")
    assert "SECRET" not in str(refused.value)


def test_the_changelogs_part_is_that_of_the_version() -> None:
    assert changes(CHANGELOG, "1.1.0") == "- new\n"
    assert changes(CHANGELOG, "1.0.0") == "- old\n"
    with pytest.raises(SystemExit, match=r"no part '## 1\.0'"):
        changes(CHANGELOG, "1.0")


def test_a_bill_holds_what_an_extra_needs_and_no_more() -> None:
    names = [one.metadata["Name"].lower() for one in needed("masked-lark[helper]")]
    assert {"masked-lark", "numba", "llvmlite", "onnx"} <= set(names)
    assert len(names) == len(set(names))
    assert {"fastapi", "pytest"}.isdisjoint(names)


METADATA = (
    "Metadata-Version: 2.4\nName: lark\nVersion: 1\nDescription-Content-Type: text/markdown\n\n# Lark\n"
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (METADATA, None),
        (METADATA.replace("text/markdown", "text/x-rst"), "could not show its description"),
        (METADATA.replace("# Lark\n", ""), "could not show its description"),
        (METADATA.replace("Version: 1\n", "Version: one\n"), "is invalid"),
        (METADATA.replace("Name: lark\n", ""), "name"),
    ],
)
def test_what_an_index_would_refuse_is_not_released(tmp_path: Path, given: str, said: str | None) -> None:
    wheel, sdist = tmp_path / "lark-1-py3-none-any.whl", tmp_path / "lark-1.tar.gz"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("lark-1.dist-info/METADATA", given)
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo("lark-1/PKG-INFO")
        member.size = len(given)
        archive.addfile(member, io.BytesIO(given.encode()))
    for package in (wheel, sdist):
        if said is None:
            check_metadata(package)
        else:
            with pytest.raises(SystemExit, match=said):
                check_metadata(package)

"""`make dist`: what is packed runs where nothing but it is installed.

Builds the source distribution and, from that, the wheel, and builds both once more elsewhere, at another
time and under another umask: the bytes are the same. Installs the wheel into a fresh environment, with what
it needs by the lock, and trains in an empty folder with the installed commands alone: with the extra
`quickstart`, which brings no torch, and with `--all` once more with all extras, which takes 7 GB.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from packaging.metadata import Metadata
from readme_renderer import markdown

ROOT: Final = Path(__file__).parents[1]
_NOT_PACKED: Final = frozenset({".git", ".venv", "build", "demo-out", "dist", "docs", "shared", "site"})
_ANOTHER_TIME: Final = 1_700_000_000
_FINDS_TORCH: Final = "from importlib.util import find_spec; print(find_spec('torch') is not None)"
_SHOWS_RESULTS: Final = """
from adserver import Client

with Client.from_environment() as client:
    [job] = client.jobs()
    print(job.to_pandas().tail(2))
"""
PLAIN_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def run(*command: str, folder: Path, path: str = PLAIN_PATH) -> None:
    """Run a command to its end in a folder, with nothing of ours on the way."""
    sys.stderr.write(f"$ {' '.join(command)}\n")
    environment = {"HOME": str(folder), "PATH": path}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def said(python: Path, program: str, folder: Path) -> str:
    """What a Python program prints, in a folder, with nothing of ours on the way."""
    environment = {"HOME": str(folder), "PATH": PLAIN_PATH}
    ran = subprocess.run(
        [python, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout


def packed(source: Path, out: Path, *options: str, **variables: str) -> list[Path]:
    """Return the wheel and the source distribution of a folder, or what the options ask for."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(source / "build", ignore_errors=True)
    build = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(out), str(source)]
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=environment)
    return sorted(out.iterdir())


def copy_source(source: Path, copy: Path) -> None:
    """Copy what packages are built from."""
    shutil.copytree(
        source, copy, ignore=lambda of, names: _NOT_PACKED.intersection(names) if Path(of) == source else ()
    )


def packed_elsewhere(source: Path, folder: Path, *options: str) -> list[Path]:
    """Return the same of a copy of the folder that was made at another time, by a user with other habits."""
    copy = folder / "another" / "place"
    copy_source(source, copy)
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (_ANOTHER_TIME, _ANOTHER_TIME))
    (temporary := folder / "temporary").mkdir()
    before = os.umask(0o077)
    try:
        habits = {"PYTHONHASHSEED": "7", "TMPDIR": str(temporary), "TZ": "Asia/Tokyo", "LC_ALL": "C"}
        return packed(copy, folder / "out", *options, **habits)
    finally:
        os.umask(before)


def check_same_bytes(packages: Iterable[Path], others: Iterable[Path]) -> None:
    """Compare packages of two builds.

    Raises:
        SystemExit: two differ.
    """
    for one, other in zip(packages, others, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise SystemExit(f"{one.name}: two builds differ; compare {one} and {other}")


def check_metadata(package: Path) -> None:
    """What an index asks of a package: valid metadata, and a description that it can show.

    `twine check` asks the same.

    Raises:
        SystemExit: an index would refuse it, or show the description as plain text.
    """
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            [name] = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
            content = wheel.read(name)
    else:
        with tarfile.open(package) as sdist:
            file = sdist.extractfile(f"{package.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert file is not None
            content = file.read()
    try:
        metadata = Metadata.from_email(content)
    except ExceptionGroup as mistakes:
        raise SystemExit(f"{package.name}: {'; '.join(map(str, mistakes.exceptions))}") from None
    if metadata.description_content_type != "text/markdown" or not markdown.render(
        metadata.description or ""
    ):
        raise SystemExit(f"{package.name}: an index could not show its description")


def installed(wheel: Path, folder: Path, extra: str) -> Path:
    """A fresh environment with the wheel and an extra, of the lock's versions by hash; its commands."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    digest = sha256(wheel.read_bytes()).hexdigest()
    wanted = folder / "requirements.txt"
    wanted.write_text(f"masked-lark[{extra}] @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    lock = ["--require-hashes", "--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *lock, "--requirement", str(wanted)], check=True)
    return environment / "bin"


def check_loops(python: Path, folder: Path) -> None:
    """What is installed brings every loop that a helper's start needs: it compiles none."""
    count = (
        "from helper.gradient.exact.kernels.compiled import cache_folder; "
        "print(len(list(cache_folder().glob('*.nbc'))))"
    )
    started = "from helper.serving.warmup import warm_up; warm_up(); "

    def loops(program: str) -> int:
        return int(said(python, program, folder))

    brought, after = loops(count), loops(started + count)
    if not 0 < brought == after:
        raise SystemExit(f"{brought} compiled loops were brought, and {after} are needed")


def check(wheel: Path, extra: str) -> None:
    """Install a wheel with an extra, and train with it in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="maskedlark-installed-") as name:
        folder = Path(name)
        commands = installed(wheel, folder, extra)
        where = "import maskedlark, helper, adserver, browser_sim; print(maskedlark.__file__)"
        shown = said(commands / "python", where, folder).strip()
        if not Path(shown).is_relative_to(folder):
            raise SystemExit(f"what runs is not what was installed: {shown}")
        for program in ("lark", "lark-helper", "adserver", "browser-sim"):
            run(str(commands / program), "--help", folder=folder)
        check_loops(commands / "python", folder)
        run(str(commands / "lark"), "demo", folder=folder)
        check_own_table(commands, folder, has_torch=extra == "all")
        sys.stderr.write(f"{wheel.name}[{extra}] installs and trains\n")


def check_own_table(commands: Path, folder: Path, *, has_torch: bool) -> None:
    """Train and measure on a table, as docs/tutorial/quickstart.md says; see the results in pandas.

    Raises:
        SystemExit: no model was exported, or nothing measured; or torch came along without being wanted.
    """
    if (said(commands / "python", _FINDS_TORCH, folder) == "True\n") is not has_torch:
        raise SystemExit(f"torch {'is missing' if has_torch else 'is here, and nobody asked for it'}")
    adserver = str(commands / "adserver")
    table = ("--csv", "visits.csv", "--label", "bought", "--value", "minutes", "--key", "device")
    run(adserver, "quickstart", "sample", "visits.csv", folder=folder)
    run(adserver, "quickstart", "new", "own", *table, folder=folder)
    plain = ("--compare-plain",) if has_torch else ()
    run(adserver, "quickstart", "run", "own", *plain, folder=folder)
    for made in ("trained.onnx", "curves.png", "measured.csv"):
        if not (folder / "own" / "runs" / "1" / made).stat().st_size:
            raise SystemExit(f"quickstart made an empty {made}")
    run(adserver, "quickstart", "up", "own", "--dashboard", folder=folder)
    try:
        run("/bin/sh", "-c", f". own/env.sh && {commands / 'python'} -c '{_SHOWS_RESULTS}'", folder=folder)
    finally:
        run(adserver, "quickstart", "down", "own", folder=folder)


def main() -> None:
    """Pack twice, and check what was packed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="also install all extras, and train with them")
    # `make setup` installs all extras by the same lock; a second 7 GB would take CI past its half hour.
    extras = ("quickstart", "all") if parser.parse_args().all else ("quickstart",)
    packages = packed(ROOT, ROOT / "dist", PYTHONHASHSEED="1")
    with tempfile.TemporaryDirectory(prefix="maskedlark-packed-") as name:
        check_same_bytes(packages, packed_elsewhere(ROOT, Path(name)))
    sys.stderr.write("two builds have the same bytes\n")
    for package in packages:
        check_metadata(package)
        if package.suffix == ".whl":  # built from the other one
            for extra in extras:
                check(package, extra)


if __name__ == "__main__":
    main()

"""Builds what pyproject.toml says, and brings the helper's compiled loops along where they can be made.

A wheel that is built where the helper's packages are installed (`make dist`) holds the machine code of the
exact path's loops, for processors with AVX2, those with AVX-512 if it was built on one, and the Python and
numba that built it: `helper/.../loops`. A helper with these does not compile at its first start. Elsewhere
they are left out, or not used.

A source distribution that is built in a git repository holds what git tracks: nothing else that lies around.

An index shows README.md without its repository: its links, and the project's own, lead to MASKEDLARK_HOME, as
https://forge.example/lark/blob/v1.0.0, or are left out, with its pictures, without that variable.

Two builds of the same files with the same packages on the same kind of processor have the same bytes: no
time, owner, mode or path of a machine gets into the wheel or the sdist. `make dist` builds each twice.
"""

import gzip
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

_EPOCH = os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
"""The time of every packed file: by default the first that a wheel can name. setuptools reads it too."""

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


class PlainWheel(bdist_wheel):
    """Packs files whose modes say nothing about the builder's."""

    def write_wheelfile(self, *arguments: str) -> None:
        """Write the last file before all are packed, and give each the mode that it has everywhere."""
        super().write_wheelfile(*arguments)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


class TrackedSources(egg_info):
    """Lists the files of a source distribution."""

    def find_sources(self) -> None:
        """List what setuptools finds, and of that only what git tracks."""
        super().find_sources()
        if not Path(".git").exists():
            return  # a copy, or a source distribution that was unpacked
        listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True)  # noqa: S607 # the builder's git
        tracked = {os.fsdecode(name) for name in listed.stdout.split(b"\0")}
        made = Path(self.egg_info).name + os.sep
        self.filelist.files = [one for one in self.filelist.files if one in tracked or one.startswith(made)]
        Path(self.egg_info, "SOURCES.txt").write_text("\n".join(self.filelist.files))


class PlainSource(sdist):
    """Packs files without their times, owners and modes."""

    def make_archive(self, base_name: str, format: str, *, base_dir: str, **_: object) -> str:  # noqa: A002 # theirs
        """Pack a folder as a gzipped tar file, the only format of Python's source distributions."""
        if format != "gztar":
            raise SystemExit(f"--formats: expected gztar, got {format}")
        path = f"{base_name}.tar.gz"
        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(_EPOCH)) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=_plain)
        return path


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.mode = int(_EPOCH), 0o755 if member.isdir() else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def for_an_index(readme: str, home: str | None) -> str:
    """Return the README with absolute links and pictures; without a home, with neither.

    Args:
        readme: Markdown, with links into the repository.
        home: The URL of the repository's files, at a forge whose `/blob/` pages have `/raw/` files.
    """

    def absolute(link: re.Match[str]) -> str:
        is_picture, text, path = link[1], link[2], link[3]
        if not home:
            return "" if is_picture else text
        base = home.rstrip("/").replace("/blob/", "/raw/") if is_picture else home.rstrip("/")
        return f"{is_picture}[{text}]({base}/{path})"

    return _LINK.sub(absolute, readme)


def urls(home: str | None) -> dict[str, str]:
    """Return where an index leads to; nowhere without a home."""
    if not home:
        return {}
    pages = {"Changelog": "CHANGELOG.md", "Documentation": "docs/index.md", "Security": "SECURITY.md"}
    return {"Source": home.rstrip("/")} | {name: f"{home.rstrip('/')}/{page}" for name, page in pages.items()}


setup(
    project_urls=urls(os.environ.get("MASKEDLARK_HOME")),
    long_description=for_an_index(Path("README.md").read_text(), os.environ.get("MASKEDLARK_HOME")),
    long_description_content_type="text/markdown",
    cmdclass={
        "build_py": BuildWithLoops,
        "bdist_wheel": PlainWheel,
        "egg_info": TrackedSources,
        "sdist": PlainSource,
    },
)

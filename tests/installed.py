"""`make dist`: what is packed runs where nothing but it is installed.

Builds the source distribution and, from that, the wheel; installs each into an environment of its own, whose
other packages are those of this one; and trains in an empty folder with the installed commands alone.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
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


def packed(out: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution, in a folder that held neither."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ""})
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def installed(package: Path, folder: Path) -> Path:
    """An environment with the package, which sees what else is installed here; the folder of its commands."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    others = Path(sysconfig.get_path("purelib"))
    (environment / others.relative_to(Path(sys.prefix)) / "others.pth").write_text(f"{others}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--force-reinstall", str(package)], check=True)
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


def check(package: Path) -> None:
    """Install a package, and train with it in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="maskedlark-installed-") as name:
        folder = Path(name)
        commands = installed(package, folder)
        where = "import maskedlark, helper, adserver, browser_sim; print(maskedlark.__file__)"
        shown = said(commands / "python", where, folder).strip()
        if not Path(shown).is_relative_to(folder):
            raise SystemExit(f"what runs is not what was installed: {shown}")
        for program in ("helper", "adserver", "browser-sim"):
            run(str(commands / program), "--help", folder=folder)
        check_loops(commands / "python", folder)
        run(str(commands / "adserver"), "quickstart", "new", "play", folder=folder)
        run(str(commands / "adserver"), "quickstart", "run", "play", folder=folder)


def main() -> None:
    """Pack, and check both."""
    for package in packed(ROOT / "dist"):
        check(package)
        sys.stderr.write(f"{package.name} installs and trains\n")


if __name__ == "__main__":
    main()

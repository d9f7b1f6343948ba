"""`make pages`: set up a fresh clone, and run every page in it as a reader would, on a busy machine.

No loop is compiled when a page begins, everything runs at a nice level, and one process a core does nothing
but keep it busy. Ends with one line a page, and with status 1 if one failed. A page that hangs is ended, with
all that it started, and counts as failed. With `--done FILE` a run goes on where an earlier one ended: pages
that passed are written there, and left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.reading import PLAIN_PATH, clone_into, read, with_environment
from tests.docs.test_pages import CHECKS

NICE = 10


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that each keep a core busy, as nice as the pages are."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def set_up(clone: Path) -> Path:
    """`make setup` as a reader runs it."""
    environment = {"HOME": str(clone.parent), "PATH": PLAIN_PATH}
    subprocess.run(
        [shutil.which("make") or "make", "setup", f"PYTHON={sys.executable}"],
        cwd=clone,
        env=environment,
        check=True,
    )
    return clone


def forget_loops(clone: Path) -> None:
    """Remove what is compiled."""
    for folder in clone.rglob("exact-*"):
        shutil.rmtree(folder)


def main() -> None:
    """Run every page, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", choices=[*CHECKS, []], help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="the environment of this run instead of a new one"
    )
    parser.add_argument("--done", type=Path, help="a file of pages that passed, to leave out")
    arguments = parser.parse_args()
    passed = set(arguments.done.read_text().split()) if arguments.done and arguments.done.exists() else set()
    os.nice(NICE)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="maskedlark-pages-") as folder, busy(os.cpu_count() or 1):
        clone = clone_into(Path(folder))
        clone = with_environment(clone) if arguments.quick else set_up(clone)
        for page in [one for one in arguments.pages or CHECKS if one not in passed]:
            forget_loops(clone)
            problem = told(page, clone)
            failed += bool(problem)
            if arguments.done and not problem:
                with arguments.done.open("a") as done:
                    done.write(f"{page}\n")
            sys.stdout.write(f"{'FAILED' if problem else 'passed'} {page}\n{problem}")
            sys.stdout.flush()
            for made in ("play", "shop", "home"):
                shutil.rmtree(clone / made, ignore_errors=True)
    sys.exit(failed > 0)


def told(page: str, clone: Path) -> str:
    """Read a page; what went wrong on it, empty if nothing did."""
    try:
        reading = read(page, clone)
        reading.check()
        CHECKS[page](reading)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return f"{error}\n"
    return ""


if __name__ == "__main__":
    main()

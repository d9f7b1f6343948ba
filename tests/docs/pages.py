"""`make pages`: set up a fresh clone, and run every page in it as a reader would, on a busy machine.

No loop is compiled when a page begins, everything runs at a nice level, and one process a core does nothing
but keep it busy. Ends with one line a page, and with status 1 if one failed.
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

from tests.docs.reading import PLAIN_PATH, Reading, clone_into, read, with_environment
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
    arguments = parser.parse_args()
    os.nice(NICE)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="maskedlark-pages-") as folder, busy(os.cpu_count() or 1):
        clone = clone_into(Path(folder))
        clone = with_environment(clone) if arguments.quick else set_up(clone)
        for page in arguments.pages or CHECKS:
            forget_loops(clone)
            reading = read(page, clone)
            problem = told(page, reading)
            failed += bool(problem)
            sys.stdout.write(f"{'FAILED' if problem else 'passed'} {page}\n{problem}")
            sys.stdout.flush()
            for made in ("play", "shop"):
                shutil.rmtree(clone / made, ignore_errors=True)
    sys.exit(failed > 0)


def told(page: str, reading: Reading) -> str:
    """What went wrong on a page; empty if nothing did."""
    try:
        reading.check()
        CHECKS[page](reading)
    except (AssertionError, OSError) as error:
        return f"{error}\n"
    return ""


if __name__ == "__main__":
    main()

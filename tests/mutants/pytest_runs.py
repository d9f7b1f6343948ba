"""A child's runs of pytest: once to see which lines each test runs, and once for each mutant."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from tests.mutants.hook import sitecustomize
from tests.mutants.plugin import ChosenTests, LineWatch

_FAST: Final = "not slow and not page and not long"
_HOOK: Final = Path(sitecustomize.__file__).parent
_SLOWER: Final = 10
_PATIENCE_S: Final = 30.0
_COMPILED: Final = ("helper/gradient/exact/", "helper/datasets/proofs.py", "maskedlark/numbers/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One mutant and the tests that may notice it.

    Attributes:
        module: The dotted name of the changed module; empty for a run of the code as it is.
        path: The module's path from the root.
        changed: Its changed source.
        batches: The tests in groups, each one run of pytest; the next runs if all of one passed.
        seconds: How long each test took, without a mutant.
    """

    module: str
    path: str
    changed: bytes
    batches: Sequence[Sequence[str]]
    seconds: dict[str, float]


def watch_lines(root: Path, file: str, watched: Sequence[str]) -> dict[str, Any]:
    """Run a file's fast tests; return what each that passed took and ran."""
    watch = LineWatch(root, watched)
    _pytest([file, "-m", _FAST], watch)
    return watch.results()


def try_mutant(attempt: Attempt) -> dict[str, str] | None:
    """Run the tests until one fails; return which and why, or None."""
    _serve(attempt)
    folder = Path(os.environ["TMPDIR"]).parent
    for batch in attempt.batches:
        files = list(dict.fromkeys(test.partition("::")[0] for test in batch))
        chosen = ChosenTests(batch)
        with _watched(attempt, folder) as watchdog:
            status = _pytest([*files, "-x"], chosen, watchdog)
        if chosen.failed is not None:
            return {"test": chosen.failed, "why": chosen.why}
        if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return {"test": files[0], "why": f"pytest ended with {status}"}
    return None


def _serve(attempt: Attempt) -> None:
    """Let this process and those that it starts import the changed module."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH"))))
    if not attempt.module:
        return
    changed = Path(os.environ["TMPDIR"]).parent / "changed.py"
    changed.write_bytes(attempt.changed)
    os.environ[sitecustomize.VARIABLE] = json.dumps(
        [attempt.module, str(Path(attempt.path).resolve()), str(changed)]
    )
    sitecustomize.install()
    if attempt.path.startswith(
        _COMPILED
    ):  # machine code is looked up by the file on disk, which has not changed
        numba: Any = import_module("numba")

        folder = str(changed.with_name("numba"))
        os.environ["NUMBA_CACHE_DIR"] = folder
        numba.config.CACHE_DIR = folder


def _pytest(arguments: Sequence[str], *plugins: object) -> int:
    os.environ["MASKEDLARK_SAME_EXAMPLES"] = "1"
    phases = [phase for phase in hypothesis.Phase if phase.name not in {"shrink", "explain", "reuse"}]
    hypothesis.settings.register_profile("mutants", database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")  # which the profile of tests/conftest.py begins with
    own = ["-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short", "--assert=plain"]
    return int(pytest.main([*own, *arguments], plugins=list(plugins)))


class _Watchdog:
    """Ends the process when a test takes many times as long as it did without a mutant."""

    def __init__(self, attempt: Attempt, folder: Path) -> None:
        self._seconds, self._folder = attempt.seconds, folder
        self._until = float("inf")
        self._test = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid
        self._until = time.monotonic() + _PATIENCE_S + _SLOWER * self._seconds.get(nodeid, 0.0)

    def pytest_runtest_logfinish(self) -> None:
        self._until = float("inf")

    def watch(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() > self._until:
                unfinished = self._folder / "unfinished"
                unfinished.write_text(json.dumps({"result": {"test": self._test, "why": "hung"}}))
                unfinished.rename(self._folder / "answer")
                sys.stdout.flush()
                os._exit(0)


@contextmanager
def _watched(attempt: Attempt, folder: Path) -> Iterator[_Watchdog]:
    watchdog = _Watchdog(attempt, folder)
    threading.Thread(target=watchdog.watch, daemon=True).start()
    yield watchdog

"""Forked children that run pytest: they find the libraries imported, and the product not.

A child gets a folder of its own for temporary files and one file for its answer. One that takes too long or
too much memory is ended with everything that it started.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

import psutil

LIBRARIES: Final = (
    "numpy",
    "scipy.stats",
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.x509",
    "grpc",
    "grpc_health.v1.health",
    "sqlalchemy.orm",
    "alembic.command",
    "psycopg",
    "pgserver",
    "onnx",
    "onnxruntime",
    "numba",
    "torch",
    "torch.func",
    "dp_accounting",
    "hypothesis.strategies",
    "hypothesis.extra.numpy",
    "httpx",
    "starlette.applications",
    "uvicorn",
    "anyio",
    "jinja2",
    "matplotlib",
    "pyarrow.parquet",
    "pandas",
    "pydantic",
    "typer.testing",
    "rich.progress",
    "moto.server",
    "obstore",
    "mpmath",
    "playwright.sync_api",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "tenacity",
    "pytest_timeout",
)
_BECOME_SUBREAPER: Final = 36
_MOST_BYTES: Final = 4 << 30
_EVERY_S: Final = 0.05
_PRODUCT: Final = ("maskedlark", "helper", "adserver", "browser_sim", "protos")


@dataclass(slots=True, kw_only=True)
class Child:
    """A child that runs.

    Attributes:
        until: The monotonic time at which it is ended; the child moves it by writing to its `limit` file.
    """

    process: int
    folder: Path
    until: float
    ended: str = ""
    answer: list[Any] = field(default_factory=list)


class Nursery:
    """Starts children and waits for them. Use it from the thread that imported everything."""

    def __init__(self, *, jobs: int, libraries: Sequence[str] = LIBRARIES) -> None:
        for name in libraries:
            with contextlib.suppress(ImportError):
                import_module(name)
        assert not any(name in sys.modules for name in _PRODUCT), "a library imported the product"
        ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
        self._jobs = jobs
        self._children: dict[int, Child] = {}
        self._over: set[int] = set()

    def map(
        self,
        tasks: Sequence[Any],
        run: Callable[[Any], Any],
        *,
        limit_s: Callable[[Any], float],
        done: Callable[[Any, Any, str], None],
    ) -> None:
        """Run each task in a child, a few at a time.

        Args:
            run: What the child does; its result comes back as JSON.
            limit_s: After how many seconds a child is ended.
            done: Called with the task, the result (None: there is none) and why the child was ended, or "".
        """
        waiting = list(reversed(tasks))
        running: dict[int, Any] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    task = waiting.pop()
                    running[self._start(task, run, limit_s(task))] = task
                time.sleep(_EVERY_S)
                self._reap()
                for process, task in list(running.items()):
                    child = self._children[process]
                    if self._is_over(child):
                        del running[process]
                        done(task, *self._ended(child))
        finally:
            for process in running:
                self._end(self._children[process], "stopped")

    def _start(self, task: Any, run: Callable[[Any], Any], limit_s: float) -> int:
        folder = Path(mkdtemp(prefix="mutants-"))
        gc.collect()
        gc.freeze()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            _be_child(folder, task, run)
        self._children[process] = Child(process=process, folder=folder, until=time.monotonic() + limit_s)
        return process

    def _reap(self) -> None:
        """Note what ended, also of what children left behind: a `pg_ctl stop` waits until it is gone."""
        with contextlib.suppress(ChildProcessError):
            while process := os.waitpid(-1, os.WNOHANG)[0]:
                self._over.add(process)

    def _is_over(self, child: Child) -> bool:
        if child.process in self._over:
            return True
        if time.monotonic() > child.until:
            self._end(child, "took too long")
        elif _memory(child.process) > _MOST_BYTES:
            self._end(child, "took too much memory")
        return bool(child.ended)

    def _end(self, child: Child, why: str) -> None:
        child.ended = why
        for process in _family(child.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.process, 0)

    def _ended(self, child: Child) -> tuple[Any, str]:
        del self._children[child.process]
        self._over.discard(child.process)
        for stray in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if str(child.folder) in " ".join((*stray.cmdline(), stray.environ().get("TMPDIR", ""))):
                    for process in (*stray.children(recursive=True), stray):
                        process.kill()
        answer = child.folder / "answer"
        found = json.loads(answer.read_text())["result"] if answer.exists() else None
        if not answer.exists() and not child.ended:
            child.ended = "ended without an answer: " + (child.folder / "output").read_text()[-2000:]
        rmtree(child.folder, ignore_errors=True)
        return found, child.ended


def _be_child(folder: Path, task: Any, run: Callable[[Any], Any]) -> None:
    """Run the task and never return."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        temporary = folder / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        import tempfile

        tempfile.tempdir = None
        result = run(task)
        unfinished = folder / "unfinished"
        unfinished.write_text(json.dumps({"result": result}))
        unfinished.rename(folder / "answer")
        status = 0
    except BaseException:  # noqa: BLE001  # the parent reads it
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _family(process: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def _memory(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0

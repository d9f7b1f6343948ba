"""What pytest does for mutants: it sees which lines run, and it runs chosen tests in a chosen order."""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

Lines = dict[str, int]
"""For each file, from the root of the tree, a number whose bit n says that line n ran."""

_SHARED: Final = "shared:"


class LineWatch:
    """Records which lines of some files each test runs, and how long it takes.

    What a fixture of a wider scope runs belongs to every test that asks for it.
    """

    def __init__(self, root: Path, files: Sequence[str]) -> None:
        self._seen: dict[str, set[int]] = {file: set() for file in files}
        self._tracers = {str(root / file): _tracer(lines) for file, lines in self._seen.items()}
        self._lines: defaultdict[str, Lines] = defaultdict(dict)
        self._fixtures: defaultdict[str, set[str]] = defaultdict(set)
        self._durations: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def results(self) -> dict[str, Any]:
        """Return, for each test that passed, its seconds and its lines, in the order in which they ran."""
        tests = {}
        for test, seconds in self._durations.items():
            if test not in self._failed:
                lines = dict(self._lines[test])
                for fixture in self._fixtures[test]:
                    _add(lines, self._lines[fixture])
                tests[test] = {
                    "s": round(seconds, 4),
                    "lines": {file: hex(bits) for file, bits in lines.items()},
                }
        return tests

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        trace = self._trace
        threading.settrace(trace)
        sys.settrace(trace)
        self._take()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            _add(self._lines[item.nodeid], self._take())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._take()
        try:
            return (yield)
        finally:
            _add(self._lines[_SHARED + fixturedef.argname], self._take())
            test = request.node.nodeid if isinstance(request.node, pytest.Item) else None
            _add(self._lines[test or _SHARED + fixturedef.argname], before)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        names = getattr(item, "fixturenames", ())
        self._fixtures[item.nodeid] = {_SHARED + name for name in names}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations[report.nodeid] += report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._tracers.get(frame.f_code.co_filename)

    def _take(self) -> Lines:
        taken = {}
        for file, lines in self._seen.items():
            if lines:
                taken[file] = sum(1 << line for line in lines.copy())
                lines.clear()
        return taken


def _tracer(lines: set[int]) -> Callable[..., Any]:
    add = lines.add

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        add(frame.f_lineno)
        return trace

    return trace


def _add(lines: Lines, more: Mapping[str, int]) -> None:
    for file, bits in more.items():
        lines[file] = lines.get(file, 0) | bits


class ChosenTests:
    """Keeps the chosen tests in the given order, and remembers the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self.failed: str | None = None
        self.why = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places),
            key=lambda item: self._places[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid
            self.why = report.longreprtext.strip().rpartition("\n")[2][:200]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid
            self.why = report.longreprtext.strip().rpartition("\n")[2][:200]

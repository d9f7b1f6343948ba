"""Which lines of the critical rooms each fast test runs: measured once, and again for what changed."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.mutants.children import Nursery
from tests.mutants.mutations import Mutant
from tests.mutants.pytest_runs import watch_lines

_LIMIT_S: Final = 1_800.0
_MOST_COMPILED: Final = 3


class LineMap:
    """The tests of a tree, their seconds and their lines."""

    def __init__(self, root: Path, folder: Path, rooms: Sequence[str], tests: Sequence[str]) -> None:
        """Find the files; nothing runs yet.

        Args:
            root: Of the tree.
            folder: Where results are kept between runs.
            rooms: The files and folders whose lines are watched, from the root.
            tests: The files and folders of tests, from the root.
        """
        self._root, self._folder = root, folder
        self.files = sorted(_python_files(root, rooms))
        self._test_files = [
            file
            for place in tests
            for file in sorted(_python_files(root, [place]))
            if Path(file).name.startswith("test_")
        ]
        self._digests = {file: _digest(root / file) for file in (*self.files, *self._test_files)}
        self._sources = {file: (root / file).read_text() for file in self.files}
        self._tests: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self._importers = self._find_importers()
        self._is_exact = True

    def files_in(self, places: Sequence[str]) -> list[str]:
        """Return the watched files of some files and folders."""
        return sorted(_python_files(self._root, places) & set(self.files))

    def measure(
        self, nursery: Nursery, show: Callable[[int, int, str], None], *, is_exact: bool = True
    ) -> None:
        """Run what changed since it was measured, and load the rest.

        Args:
            is_exact: Whether anything runs: else what was kept is used, whatever has changed since.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_exact = is_exact
        stale = [file for file in self._test_files if is_exact and not self._is_fresh(file)]
        finished = 0

        def keep(file: str, result: Any, ended: str) -> None:
            nonlocal finished
            finished += 1
            if result is None:
                show(finished, len(stale), f"{file}: not measured, {ended}")
                return
            tests = result
            ran = {path for test in tests.values() for path in test["lines"]}
            kept = {
                "test": self._digests[file],
                "files": {path: self._digests[path] for path in sorted(ran)},
                "tests": tests,
            }
            self._path(file).write_text(json.dumps(kept))
            show(finished, len(stale), f"{file}: {len(tests)} tests {ended}")

        nursery.map(
            stale,
            partial(_watch, self._root, self.files),
            limit_s=lambda _: _LIMIT_S,
            done=keep,
        )
        for file in filter(self._is_fresh, self._test_files):
            for test, ran in json.loads(self._path(file).read_text())["tests"].items():
                lines = {path: int(bits, 16) for path, bits in ran["lines"].items()}
                self._tests[test] = lines
                self.seconds[test] = ran["s"]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run what a mutant changes, in no order."""
        if mutant.is_compiled:
            return self._running(dict.fromkeys(self._closest_importers(mutant.path), -1))
        if mutant.lines:
            return self._running({mutant.path: _mask(mutant.lines)})
        name = re.match(r"(?:async )?(?:def |class )?(\w+)", mutant.statement)
        wanted = (
            self._naming(name[1] if name else "", mutant.path),
            {mutant.path: -1},
            dict.fromkeys(self._closest_importers(mutant.path), -1),
        )
        return next(filter(None, map(self._running, wanted)), [])

    def tests_beside(self, tests: Iterable[str]) -> list[str]:
        """Return the other tests of the same files: what one test made may be used by the next."""
        files = {test.partition("::")[0] for test in tests}
        known = set(tests)
        return [test for test in self._tests if test not in known and test.partition("::")[0] in files]

    def _running(self, wanted: dict[str, int]) -> list[str]:
        return [
            test
            for test, lines in self._tests.items()
            if any(lines.get(path, 0) & mask for path, mask in wanted.items())
        ]

    def _naming(self, name: str, path: str) -> dict[str, int]:
        """The lines that mention a name of a module, in functions; for a function, its own."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        masks = {}
        for file in {path, *self._importers.get(path, ())}:
            lines = [
                number
                for number, line in enumerate(self._sources[file].splitlines(), start=1)
                if word.search(line) and line.startswith(" ")
            ]
            masks[file] = _mask(lines)
        for node in ast.walk(ast.parse(self._sources[path])):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                masks[path] |= _mask(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
        return masks

    def _closest_importers(self, path: str) -> set[str]:
        found, edge = {path}, {path}
        for _ in range(_MOST_COMPILED):
            edge = {importer for file in edge for importer in self._importers.get(file, ())} - found
            found |= edge
        return found

    def _find_importers(self) -> dict[str, set[str]]:
        modules = {file.removesuffix(".py").replace("/", "."): file for file in self.files}
        importers: dict[str, set[str]] = {}
        for file, source in self._sources.items():
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
                    for module in names & modules.keys():
                        importers.setdefault(modules[module], set()).add(file)
        return importers

    def _is_fresh(self, file: str) -> bool:
        path = self._path(file)
        if not path.exists():
            return False
        kept = json.loads(path.read_text())
        return not self._is_exact or (
            bool(kept["test"] == self._digests[file])
            and all(self._digests.get(ran, digest) == digest for ran, digest in kept["files"].items())
        )

    def _path(self, file: str) -> Path:
        return self._folder / f"{file.replace('/', '.')}.json"


def _watch(root: Path, files: Sequence[str], file: str) -> dict[str, Any]:
    return watch_lines(root, file, files)


def _python_files(root: Path, places: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for place in places:
        path = root / place
        files = path.rglob("*.py") if path.is_dir() else [path]
        found |= {file.relative_to(root).as_posix() for file in files if file.name != "__init__.py"}
    return found


def _mask(lines: Iterable[int]) -> int:
    return sum(1 << line for line in set(lines))


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]

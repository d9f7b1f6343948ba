"""Which lines of the critical rooms each fast test runs: measured once, and again for what changed."""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.mutants.children import Nursery
from tests.mutants.mutations import Mutant
from tests.mutants.pytest_runs import watch_lines

_LIMIT_S: Final = 1_800.0
_MOST_COMPILED: Final = 3


@dataclass(frozen=True, slots=True)
class _Moved:
    """Where lines are after a change; without blocks, where they were.

    Attributes:
        blocks: The bits of the old lines, those of the new ones, and whether each new line is one old line.
    """

    blocks: tuple[tuple[int, int, bool], ...] = ()

    @classmethod
    def between(cls, old: str, new: str) -> "_Moved":
        """Compare two texts."""
        changes = SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_opcodes()
        blocks = []
        for kind, begin, end, new_begin, new_end in changes:
            before = range(begin + 1, end + 1) or range(begin, begin + 1)  # what is put in follows that line
            blocks.append((_mask(before), _mask(range(new_begin + 1, new_end + 1)), kind == "equal"))
        return cls(tuple(blocks))

    def applied(self, lines: int) -> int:
        """Return the bits of the lines as they are now."""
        if not self.blocks:
            return lines
        moved = 0
        for before, after, is_equal in self.blocks:
            if not lines & before:
                continue
            if is_equal:
                shift = after.bit_length() - before.bit_length()
                moved |= (lines & before) << shift if shift >= 0 else (lines & before) >> -shift
            else:
                moved |= after
        return moved


class LineMap:
    """The tests of a tree, their seconds and their lines."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        rooms: Sequence[str],
        tests: Sequence[str],
        always: Collection[str] = (),
    ) -> None:
        """Find the files; nothing runs yet.

        Args:
            root: Of the tree.
            folder: Where results are kept between runs.
            rooms: The files and folders whose lines are watched, from the root.
            tests: The files and folders of tests, from the root.
            always: The files of tests that look at modules as a whole, whatever runs.
        """
        self._root, self._folder, self._always = root, folder, always
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
        self._moves: dict[tuple[str, str], _Moved] = {}

    def files_in(self, places: Sequence[str]) -> list[str]:
        """Return the watched files of some files and folders."""
        return sorted(_python_files(self._root, places) & set(self.files))

    def measure(
        self, nursery: Nursery, show: Callable[[int, int, str], None], *, is_exact: bool = True
    ) -> None:
        """Run the test files that are new or changed, and load the rest.

        What a test runs of a module that changed since is taken from its old text: the same lines, and for a
        changed one those that stood there before.

        Args:
            is_exact: Whether anything runs: else what was kept is used, whatever has changed since.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for file, source in self._sources.items():
            self._text(self._digests[file]).write_text(source)
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
        for file in self._test_files:
            if self._path(file).exists():
                self._load(json.loads(self._path(file).read_text()))

    def _load(self, kept: Mapping[str, Any]) -> None:
        moves = {
            path: self._moved(path, digest) for path, digest in kept["files"].items() if path in self._digests
        }
        for test, ran in kept["tests"].items():
            self.seconds[test] = ran["s"]
            self._tests[test] = {
                path: moves[path].applied(int(bits, 16))
                for path, bits in ran["lines"].items()
                if path in moves
            }

    def _moved(self, path: str, digest: str) -> "_Moved":
        """Where the lines of an earlier text of a module are now."""
        old = self._text(digest)
        if digest == self._digests[path] or not old.exists():
            return _Moved()
        if (path, digest) not in self._moves:
            self._moves[path, digest] = _Moved.between(old.read_text(), self._sources[path])
        return self._moves[path, digest]

    def _text(self, digest: str) -> Path:
        return self._folder / f"{digest}.source"

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run what a mutant changes, in no order."""
        if mutant.is_compiled:
            return self._running(dict.fromkeys(self._closest_importers(mutant.path), -1))
        if mutant.lines:
            return self._running({mutant.path: _mask(mutant.lines)})
        files = {*self._always, *self._naming_files(mutant.path)}
        return list(dict.fromkeys((*self._of_declaration(mutant), *self._matching(files))))

    def _of_declaration(self, mutant: Mutant) -> list[str]:
        """The tests that use what is declared outside functions, which runs when the module is imported."""
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

    def _naming_files(self, path: str) -> list[str]:
        """The files of tests that import a module, or name it."""
        module = path.removesuffix(".py").replace("/", ".")
        return [file for file in self._test_files if module in (self._root / file).read_text()]

    def _matching(self, files: Collection[str]) -> list[str]:
        return [test for test in self._tests if test.partition("::")[0] in files]

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
        return bool(kept["test"] == self._digests[file])

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

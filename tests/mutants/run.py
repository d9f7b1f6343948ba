"""Draws mutants, runs the tests that may notice them, and says which survived."""

import difflib
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.mutants.children import Nursery
from tests.mutants.equivalents import Equivalents
from tests.mutants.line_map import LineMap
from tests.mutants.mutations import WEIGHTS, Mutant, mutants_of
from tests.mutants.pytest_runs import Attempt, try_mutant

_BATCHES_S: Final = (4.0, 25.0)
_PATIENCE_S: Final = 240.0
_SLOWER: Final = 10
# Many such tests cost less than one that starts a server: vectors, say, which hold the whole protocol.
_QUICK_S: Final = 0.05

Show = Callable[[int, int, str], None]


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    tests: int
    killer: str = ""
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a sample."""

    killed: list[Verdict] = field(default_factory=list)
    survived: list[Verdict] = field(default_factory=list)
    equivalent: list[tuple[Mutant, str]] = field(default_factory=list)
    unreliable: set[str] = field(default_factory=set)

    @property
    def killed_share(self) -> float:
        """Of the mutants that change behaviour."""
        changing = len(self.killed) + len(self.survived)
        return len(self.killed) / changing if changing else 1.0

    def figures(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
        kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for word, mutants in (
            ("killed", [verdict.mutant for verdict in self.killed]),
            ("survived", [verdict.mutant for verdict in self.survived]),
            ("equivalent", [mutant for mutant, _ in self.equivalent]),
        ):
            for mutant in mutants:
                rooms[str(Path(mutant.path).parent)][word] += 1
                kinds[mutant.kind][word] += 1
        return {
            "mutants": len(self.killed) + len(self.survived) + len(self.equivalent),
            "killed": len(self.killed),
            "equivalent": len(self.equivalent),
            "killed_share": round(self.killed_share, 4),
            "hung": sum(verdict.why == "hung" for verdict in self.killed),
            "rooms": {room: dict(counts) for room, counts in sorted(rooms.items())},
            "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
            "survivors": [
                {
                    "place": f"{verdict.mutant.path}:{verdict.mutant.line}",
                    "change": verdict.mutant.change,
                    "tests": verdict.tests,
                }
                for verdict in self.survived
            ],
            "unreliable_tests": sorted(self.unreliable),
        }


def draw(root: Path, rooms: Sequence[Sequence[str]], *, count: int, seed: int) -> list[Mutant]:
    """Return different mutants of a few rooms, the same for a seed.

    A room counts by the root of how many mutants it has, a kind by its weight, so that neither large rooms
    nor common kinds take the whole sample.
    """
    rng = random.Random(seed)
    pools = [_by_kind(all_mutants(root, files)) for files in rooms]
    pools = [pool for pool in pools if pool]
    drawn: dict[tuple[str, int, int, str], Mutant] = {}
    left = sum(len(mutants) for pool in pools for mutants in pool.values())
    sizes = [sum(map(len, pool.values())) ** 0.5 for pool in pools]
    while len(drawn) < min(count, left):
        pool = rng.choices(pools, sizes)[0]
        kinds = sorted(pool)
        kind = rng.choices(kinds, [WEIGHTS[one] for one in kinds])[0]
        mutant = rng.choice(pool[kind])
        drawn[mutant.path, mutant.start, mutant.end, mutant.text] = mutant
    return list(drawn.values())


def all_mutants(root: Path, files: Iterable[str]) -> list[Mutant]:
    """Return every mutant of some files."""
    return [mutant for file in files for mutant in mutants_of(file, (root / file).read_bytes())]


def _by_kind(mutants: Iterable[Mutant]) -> dict[str, list[Mutant]]:
    kinds: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        kinds.setdefault(mutant.kind, []).append(mutant)
    return kinds


class Hunt:
    """One sample of mutants against the tests of a tree."""

    def __init__(
        self,
        root: Path,
        lines: LineMap,
        nursery: Nursery,
        equivalents: Equivalents,
        *,
        most_s: float,
        show: Show,
    ) -> None:
        """Take what is needed.

        Args:
            most_s: How many seconds of tests, without a mutant, a mutant meets at most.
        """
        self._root, self._lines, self._nursery = root, lines, nursery
        self._equivalents, self._most_s, self._show = equivalents, most_s, show
        self._outcome = Outcome()

    def run(self, mutants: Sequence[Mutant]) -> Outcome:
        """Run everything.

        A kill counts if its test passes without the mutant, in a process of its own. Tests that do not are
        left out, and the mutants that they seemed to kill meet the others.
        """
        waiting = []
        for mutant in mutants:
            if reason := self._equivalents.reason(mutant):
                self._outcome.equivalent.append((mutant, reason))
            else:
                waiting.append(mutant)
        while waiting:
            verdicts = self._try(waiting)
            unreliable = self._unreliable({one.killer for one in verdicts if one.killer})
            self._outcome.unreliable |= unreliable
            waiting = []
            for verdict in verdicts:
                if verdict.killer in unreliable:
                    waiting.append(verdict.mutant)
                else:
                    (self._outcome.killed if verdict.killer else self._outcome.survived).append(verdict)
        return self._outcome

    def _try(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        attempts = {mutant: self._attempt(mutant) for mutant in mutants}

        def keep(mutant: Mutant, result: Any, ended: str) -> None:
            tests = sum(map(len, attempts[mutant].batches))
            verdict = Verdict(mutant=mutant, tests=tests)
            if ended:
                verdict.killer, verdict.why = ended.splitlines()[0], ended
            elif result is not None:
                verdict.killer, verdict.why = result["test"], result["why"]
            verdicts.append(verdict)
            survived = sum(not one.killer for one in verdicts)
            self._show(len(verdicts), len(mutants), f"{survived} survived")
            if not verdict.killer:
                sys.stderr.write(f"survived {tests} tests:\n{difference(self._root, mutant)}\n")

        self._nursery.map(
            mutants,
            lambda mutant: try_mutant(attempts[mutant]),
            limit_s=lambda mutant: _PATIENCE_S + _SLOWER * sum(attempts[mutant].seconds.values()),
            done=keep,
        )
        return verdicts

    def _attempt(self, mutant: Mutant) -> Attempt:
        tests = [test for test in self._lines.tests_of(mutant) if test not in self._outcome.unreliable]
        beside = [test for test in self._lines.tests_beside(tests) if test not in self._outcome.unreliable]
        batches = self._batches(mutant, tests, beside)
        return Attempt(
            module=mutant.path.removesuffix(".py").replace("/", "."),
            path=mutant.path,
            changed=mutant.applied((self._root / mutant.path).read_bytes()),
            batches=batches,
            seconds={test: self._lines.seconds[test] for batch in batches for test in batch},
        )

    def _batches(self, mutant: Mutant, tests: Sequence[str], beside: Sequence[str]) -> list[list[str]]:
        """Put quick tests first, then the module's own, the room's, and all; of each file a few at a time."""
        seconds = self._lines.seconds
        turns: Counter[str] = Counter()
        ranked = []
        for is_beside, some in ((False, tests), (True, beside)):
            for test in sorted(some, key=lambda one: seconds[one]):
                file = test.partition("::")[0]
                turns[file] += 1
                is_slow = seconds[test] > _QUICK_S
                place = (is_beside, is_slow, _distance(mutant, test), turns[file], seconds[test])
                ranked.append((place, test))
        batches: list[list[str]] = [[]]
        spent = 0.0
        for _, test in sorted(ranked):
            if spent > self._most_s:
                break
            if len(batches) <= len(_BATCHES_S) and spent > _BATCHES_S[len(batches) - 1]:
                batches.append([])
            batches[-1].append(test)
            spent += seconds[test]
        return [_by_file(batch) for batch in batches if batch]

    def _unreliable(self, killers: set[str]) -> set[str]:
        """Return the tests that fail without a mutant, too."""
        tests = sorted(test for test in killers if test in self._lines.seconds)
        found: set[str] = set()

        def keep(test: str, result: Any, ended: str) -> None:
            if ended or result is not None:
                found.add(test)

        self._nursery.map(
            tests,
            lambda test: try_mutant(
                Attempt(module="", path="", changed=b"", batches=[[test]], seconds=self._lines.seconds)
            ),
            limit_s=lambda test: _PATIENCE_S + _SLOWER * self._lines.seconds[test],
            done=keep,
        )
        return found


def _distance(mutant: Mutant, test: str) -> int:
    """Return how far a test is from a mutant: folders that differ, none for a test that is named for it."""
    file, _, name = test.partition("::")
    path = Path(mutant.path)
    if Path(file).name.startswith(f"test_{path.stem}") or f"_{path.stem}_" in f"_{name}_":
        return 0
    alike = 0
    for ours, theirs in zip(path.parent.parts, Path(file).parts[1:], strict=False):
        if ours != theirs:
            break
        alike += 1
    return len(path.parts) - alike


def difference(root: Path, mutant: Mutant) -> str:
    """Return a mutant as a diff with one line of context."""
    source = (root / mutant.path).read_bytes()
    before, after = source.decode().splitlines(), mutant.applied(source).decode().splitlines()
    return "\n".join(difflib.unified_diff(before, after, mutant.path, mutant.kind, lineterm="", n=1))


def _by_file(tests: Sequence[str]) -> list[str]:
    order = {
        file: place for place, file in enumerate(dict.fromkeys(test.partition("::")[0] for test in tests))
    }
    return sorted(tests, key=lambda test: order[test.partition("::")[0]])

"""The mutants that were read and found to change nothing that anyone could rely on, each with its reason."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.mutants.mutations import Mutant

FILE: Final = Path(__file__).parent / "equivalent.toml"


class Equivalents:
    """Judged mutants, found by what they change and not by their line."""

    def __init__(self, path: Path) -> None:
        entries = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
        self._reasons = {
            (one["file"], one["function"], one["statement"], one["change"]): str(one["reason"])
            for one in entries
        }

    def reason(self, mutant: Mutant) -> str | None:
        """Return why a mutant is equivalent, or None."""
        return self._reasons.get(mutant.identity)

    @property
    def files(self) -> set[str]:
        """The modules that entries are about."""
        return {entry[0] for entry in self._reasons}

    def outdated(self, mutants: Iterable[Mutant]) -> list[str]:
        """Return the entries that are about none of these mutants: the code has changed."""
        known = {mutant.identity for mutant in mutants}
        return [f"{entry[0]}: {entry[3]}" for entry in self._reasons if entry not in known]


def as_entry(mutant: Mutant) -> str:
    """Return a mutant as an entry of the file, without its reason."""
    names = ("file", "function", "statement", "change")
    rows = [f"{name} = {_quoted(value)}" for name, value in zip(names, mutant.identity, strict=True)]
    return "\n".join(["[[mutant]]", *rows, 'reason = ""'])


def _quoted(value: str) -> str:
    return f"'{value}'" if "'" not in value else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

"""Serve one module from a changed source: in this process, and in every Python process that it starts.

The folder of this file is put in front of PYTHONPATH, so that Python imports it at each start.
`MASKEDLARK_MUTANT` holds the module's name, its path and the path of the changed source, as JSON.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

VARIABLE: Final = "MASKEDLARK_MUTANT"


class _ChangedSource(importlib.machinery.SourceFileLoader):
    """A loader that compiles the changed source, and neither reads nor writes byte code on disk."""

    def __init__(self, name: str, path: str, changed: str) -> None:
        super().__init__(name, path)
        self._changed = changed

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(Path(self._changed).read_bytes(), self.path, "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of one module."""

    def __init__(self, name: str, path: str, changed: str) -> None:
        self._name, self._path = name, path
        self._loader = _ChangedSource(name, path, changed)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self._loader)


def install() -> None:
    """Put the finder first, if a mutant is set."""
    if given := os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Finder(*json.loads(given)))


install()

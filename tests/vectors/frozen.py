"""Which vectors are frozen: `python -m tests.vectors.frozen 1.0` writes the list of a version.

The list holds a digest of each case of the other vectors, by file. A later version may add cases to those
files, and changes none. The list and the files of tests/vectors/1.0 are made before that version is tagged.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
FILES: Final = ("browser", "encoder", "proofs", "updates", "numerics")


def case_digests(name: str) -> list[str]:
    """The digests of all cases of a file, wherever they stand in it."""
    return sorted(_digests(json.loads((FOLDER / name / "vectors.json").read_text())))


def _digests(part: Any) -> list[str]:
    """Of each element of a list, and of each member of an object that holds neither lists of objects."""
    if isinstance(part, list):
        return [sha256(json.dumps(one, sort_keys=True).encode()).hexdigest() for one in part]
    return [digest for key in sorted(part) for digest in _digests_of_member(key, part[key])]


def _digests_of_member(key: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return _digests(value)
    if isinstance(value, dict):
        return _digests([{name: one} for name, one in value.items()])
    return _digests([{key: value}])


def listed() -> dict[str, list[str]]:
    """The list of today."""
    return {name: case_digests(name) for name in FILES}


if __name__ == "__main__":
    (FOLDER / sys.argv[1] / "cases.json").write_text(json.dumps(listed(), indent=1) + "\n")

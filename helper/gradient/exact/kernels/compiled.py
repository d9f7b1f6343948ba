"""How the exact path's loops are compiled.

By numba, without fast-math, cached on disk so that only a first start compiles.

Numba notices a change of the file that a cached loop is in, but not of a function that it inlined from
another file. So the cache's folder is named after the contents of the whole package.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import config, njit

_FOLDER: Final = "CACHE_DIR"

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """A loop over arrays that runs without the interpreter's lock."""
    given = getattr(config, _FOLDER)
    setattr(config, _FOLDER, _cache_folder(given))
    try:
        return cast("Function", njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        setattr(config, _FOLDER, given)


def inlined(function: Function) -> Function:
    """An expression that kernels contain: in a loop it vectorises with the rest."""
    return cast("Function", njit(inline="always", error_model="numpy")(function))


@cache
def _cache_folder(given: str) -> str:
    """A folder in the one that the operator gave by NUMBA_CACHE_DIR, or else beside Python's own cache."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    base = Path(given) if given else Path(__file__).parent.parent / "__pycache__"
    return str(base / f"exact-{digest.hexdigest()[:16]}")

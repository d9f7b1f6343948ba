"""How the exact path's loops are compiled.

By numba, without fast-math, for the oldest processor that has AVX2, cached on disk: only a first start
compiles, and an image or an installation can bring the cache along.

    helper warmup      compiles everything, into NUMBA_CACHE_DIR if that is set

A cached loop is found again wherever the package and the cache lie. Numba alone would look for it by the path
of its source, and would not notice a change of a function that it inlined from another file. So the cache's
folder is named after the contents of the whole package.
"""

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from llvmlite.binding import get_host_cpu_features
from numba import config, njit
from numba.core.caching import FunctionCache, UserProvidedCacheLocator

_LOCATORS: Final = "CACHE_LOCATOR_CLASSES"
_PROCESSOR: Final = "CPU_NAME"
_FOLDER: Final = "CACHE_DIR"
_BASELINE: Final = "x86-64-v3"

Function = TypeVar("Function", bound=Callable[..., Any])


class PackageCacheLocator(UserProvidedCacheLocator):
    """Finds a loop's cache by the contents of this package and the loop's place in it.

    The path of the package does not count.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(cache_folder())
        self._module = py_func.__module__.rpartition(".")[2]

    def get_source_stamp(self) -> str:
        """Nothing but the folder's name."""
        return Path(self._cache_path).name

    def get_disambiguator(self) -> str:
        """Loops of one name in several modules are several loops."""
        return f"{self._module}-{self._lineno}"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "PackageCacheLocator":
        """Always: `ensure_cache_path` says so if a loop that is not cached cannot be written."""
        return cls(py_func, py_file)


class _Kept(FunctionCache):
    """A loop's cache; where it cannot be read or written, what is compiled is used by this process alone."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba does it; None: nothing is kept."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]  # numba's
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """As numba does it."""
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]  # numba's


def kernel(function: Function) -> Function:
    """A loop over arrays that runs without the interpreter's lock."""
    _use_baseline()
    given = getattr(config, _LOCATORS)
    setattr(config, _LOCATORS, f"{__name__}.{PackageCacheLocator.__name__}")
    try:
        compiled: Any = njit(nogil=True, error_model="numpy")(function)
        compiled._cache = _Kept(function)  # type: ignore[no-untyped-call]  # what cache=True does, but for the class
        return cast("Function", compiled)
    finally:
        setattr(config, _LOCATORS, given)


def inlined(function: Function) -> Function:
    """An expression that kernels contain: in a loop it vectorises with the rest."""
    return cast("Function", njit(inline="always", error_model="numpy")(function))


@cache
def _use_baseline() -> None:
    """Compile for every processor with AVX2 alike, unless the operator set NUMBA_CPU_NAME: it costs no speed.

    The loops are limited by memory; docs/explanation/numerics.md has the figures.
    """
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    if getattr(config, _PROCESSOR) is None and is_x86 and get_host_cpu_features().get("avx2"):
        setattr(config, _PROCESSOR, _BASELINE)


def cache_folder() -> Path:
    """Where compiled loops are kept, as `NUMBA_CACHE_DIR` and this package's contents say.

    Without the variable that is the folder that a wheel brings (setup.py), if it holds all loops for this
    Python and numba; or beside Python's own cache; or in the user's, where an installation is another user's
    and brings none.
    """
    return _cache_folder(getattr(config, _FOLDER))


def complete(folder: Path) -> Path:
    """The file that says that a folder holds every loop, as this Python and this numba read them."""
    major, minor, _ = platform.python_version_tuple()
    return folder / f"complete-{major}.{minor}-numba-{numba.__version__}"


@cache
def _cache_folder(given: str) -> Path:
    package = Path(__file__).parent.parent
    digest = sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    name = f"exact-{digest.hexdigest()[:16]}"
    if given:
        return Path(given) / name
    brought = package / "loops" / name
    if complete(brought).exists():
        return brought
    beside = package / "__pycache__"
    is_here = (beside / name).exists() or os.access(beside if beside.exists() else package, os.W_OK)
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskedlark"
    return (beside if is_here else user) / name

"""How the exact path's loops are compiled.

By numba, without fast-math, for one of two kinds of processors, with AVX2 or with AVX-512, cached on disk:
only a first start compiles, and an image or an installation can bring the cache along. Machine code of
one kind is the same whichever processor made it, and is looked up by its kind.

    lark-helper warmup                    compiles everything, into NUMBA_CACHE_DIR if that is set
    lark-helper warmup --other-machines   the same for each kind of processor whose code this one can run

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
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name, set_option
from numba import config, njit
from numba.core.caching import FunctionCache, UserProvidedCacheLocator

from maskedlark.frozen import frozen
from maskedlark.runtime.ownership import check_loaded_folder

_LOCATORS: Final = "CACHE_LOCATOR_CLASSES"
_PROCESSOR: Final = "CPU_NAME"
_FEATURES: Final = "CPU_FEATURES"
_FOLDER: Final = "CACHE_DIR"
# Turns off the two passes of LLVM that make a branch of a choice between two values.
_NO_BRANCHES: Final = ("-x86-cmov-converter=false", "-disable-cgp-select2branch=true")
_BASELINE: Final = "x86-64-v3"
_OWNERS_TO_WRITE: Final = 0o755
_OTHERS_WRITE: Final = 0o022
_OF_BASELINE: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")

Function = TypeVar("Function", bound=Callable[..., Any])


@frozen
class ProcessorKind:
    """Processors that run the same machine code.

    Attributes:
        name: Of the kind, as files show it.
        needs: The instructions beyond those of x86-64-v3 that are used, as LLVM calls them.
    """

    name: str
    needs: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which another process compiles for this kind."""
        return {f"NUMBA_{_PROCESSOR}": _BASELINE, f"NUMBA_{_FEATURES}": self.features}

    @property
    def features(self) -> str:
        """As LLVM and numba take them; never nothing, for which numba takes all that this processor has."""
        return ",".join(f"+{one}" for one in ("avx2", *self.needs))


KINDS: Final = (
    ProcessorKind(name="avx512", needs=("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    ProcessorKind(name="avx2", needs=()),
)
"""The faster first."""


class _PackageCacheLocator(UserProvidedCacheLocator):
    """Finds a loop's cache by the contents of this package and the loop's place in it.

    The path of the package does not count.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(cache_folder())
        self._module = py_func.__module__.rpartition(".")[2]

    def get_source_stamp(self) -> str:
        """Return nothing but the folder's name."""
        return Path(self._cache_path).name

    def get_disambiguator(self) -> str:
        """Distinguish loops of one name in several modules."""
        return f"{self._module}-{self._lineno}"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_PackageCacheLocator":
        """Always return a locator: `ensure_cache_path` reports a loop that cannot be cached."""
        return cls(py_func, py_file)


class _Kept(FunctionCache):
    """A loop's cache; where it cannot be read or written, what is compiled is used by this process alone."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load as numba does it; None if nothing is cached."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]  # numba's
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled loop as numba does, private to its owner, without the listing.

        The listing holds paths and addresses: without it the same source, compiler and kind of processor make
        the same bytes, wherever and whenever they do.
        """
        kept = data._replace(type_annotation="")
        # numba creates files by the process's umask: nobody else may replace a pickle that is loaded later.
        before = os.umask(_OTHERS_WRITE)
        try:
            with suppress(OSError):
                super().save_overload(sig, kept)  # type: ignore[no-untyped-call]  # numba's
        finally:
            os.umask(before)


def kernel(function: Function) -> Function:
    """Compile a loop over arrays that runs without the interpreter's lock."""
    _use_kind()
    given = getattr(config, _LOCATORS)
    setattr(config, _LOCATORS, f"{__name__}.{_PackageCacheLocator.__name__}")
    try:
        # By numpy's rules a division by 0 is an infinity; by Python's it would be a branch on what records
        # hold.
        compiled: Any = njit(nogil=True, error_model="numpy")(function)
        compiled._cache = _Kept(function)  # type: ignore[no-untyped-call]  # what cache=True does, but for the class
        return cast("Function", compiled)
    finally:
        setattr(config, _LOCATORS, given)


def inline(function: Function) -> Function:
    """Compile an expression that kernels contain: in a loop it vectorises with the rest."""
    _use_kind()  # numba looks at it as soon as there is any function
    return cast("Function", njit(inline="always", error_model="numpy")(function))


@cache
def _use_kind() -> None:
    """Compile for a kind of processor, unless the operator set NUMBA_CPU_NAME or NUMBA_CPU_FEATURES.

    It is the fastest one that runs here of those whose loops are all there; with no such, the fastest that
    runs here. numba takes all of this processor's instructions else, and finds no other processor's loops.

    A choice between two values stays one: LLVM would make branches of some, which are faster where a
    processor predicts them, and take another time for other records.
    """
    for option in _NO_BRANCHES if _is_x86() else ():
        set_option("maskedlark", option)
    kinds = runnable()
    if kinds and getattr(config, _PROCESSOR) is None and getattr(config, _FEATURES) is None:
        folder = cache_folder()
        there = (one for one in kinds if _complete(folder, one.name).exists())
        setattr(config, _PROCESSOR, _BASELINE)
        setattr(config, _FEATURES, next(there, kinds[0]).features)


def runnable() -> tuple[ProcessorKind, ...]:
    """Return the kinds of processors whose code this one runs, fastest first; none but on x86."""
    if not _is_x86():
        return ()
    has = get_host_cpu_features()
    return tuple(one for one in KINDS if all(has.get(need) for need in (*_OF_BASELINE, *one.needs)))


def _is_x86() -> bool:
    return platform.machine().lower() in {"x86_64", "amd64"}


def processor_kind() -> str:
    """Return the kind that loops are compiled for, or a digest of other operator's settings."""
    _use_kind()
    name, features = getattr(config, _PROCESSOR), getattr(config, _FEATURES)
    for kind in KINDS:
        if (name, features) == (_BASELINE, kind.features):
            return kind.name
    features = get_host_cpu_features().flatten() if features is None else features
    return sha256(f"{name or get_host_cpu_name()} {features}".encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Return where compiled loops are cached, from `NUMBA_CACHE_DIR` and the package's contents.

    Without the variable it is the first of these that is usable: the folder that a wheel brings (setup.py),
    if it holds all loops for this Python and numba and for a kind of processor whose code runs here; a folder
    in the package's `__pycache__`; the user's cache folder.
    """
    return _cache_folder(getattr(config, _FOLDER))


def complete(folder: Path) -> Path:
    """Return the file that marks a folder as holding every loop that this process would compile.

    With this Python and numba, for the kind of processor that it compiles for.
    """
    return _complete(folder, processor_kind())


def _complete(folder: Path, compiled_for: str) -> Path:
    major, minor, _ = platform.python_version_tuple()
    return folder / f"complete-{major}.{minor}-numba-{numba.__version__}-{compiled_for}"


@cache
def _cache_folder(given: str) -> Path:
    package = Path(__file__).parent.parent
    digest = sha256()
    # Sorted: a directory has no order of its own, and the name must be the same everywhere.
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    name = f"exact-{digest.hexdigest()[:16]}"
    if given:
        return _check_folder(Path(given) / name)
    brought = package / "loops" / name
    if any(_complete(brought, one.name).exists() for one in runnable()):
        return _check_folder(brought, installed_with=Path(__file__))
    beside = package / "__pycache__"
    # One that is there is used although it cannot be written: an image brings it along.
    is_here = (beside / name).exists() or os.access(beside if beside.exists() else package, os.W_OK)
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskedlark"
    return (
        _check_folder(beside / name, installed_with=Path(__file__)) if is_here else _check_folder(user / name)
    )


def _check_folder(folder: Path, *, installed_with: Path | None = None) -> Path:
    """Create a folder if it is missing, and check that only its owner can write to it.

    numba loads pickles from it, and a pickle runs code.

    Raises:
        InvalidTask: another user owns it, or may write to it.
    """
    with suppress(OSError):  # then nothing is kept
        folder.mkdir(mode=_OWNERS_TO_WRITE, parents=True, exist_ok=True)
    check_loaded_folder(folder, installed_with=installed_with)
    return folder

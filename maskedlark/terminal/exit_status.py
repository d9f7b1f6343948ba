"""How a service's command ends: a refusal becomes one line and an exit status.

A part that is not installed, and a file that the system refuses, become one line too. A bug ends it with a
traceback, in which a message with what others wrote is escaped. In a log of JSON each is a line of that log.
"""

import errno
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn

from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.escape import escape, escape_lines
from maskedlark.observability.logs import logs_json

_LOG: Final = logging.getLogger(__name__)
_HOUSES: Final = ("adserver", "browser_sim", "helper", "maskedlark", "protos")
REFUSED: Final = 1
"""Something was wrong or refused; asking again gives the same answer. Wrong options exit with 2."""
UNAVAILABLE: Final = 75
"""A helper did not answer, or is not well; run the command again later (EX_TEMPFAIL)."""
# A write to a full disk names no file
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_OURS: Final = "masked-lark"
# The extra of each party, by the name of its folder; a project of quickstart starts all parties
_ROOMS: Final = {"adserver": "adserver", "browser_sim": "browser", "helper": "helper"}
_ALL_PARTIES: Final = "adserver.cli.quickstart"
# Modules that are not named like what is installed
_DISTRIBUTIONS: Final = {
    "grpc_health": "grpcio-health-checking",
    "opentelemetry": "opentelemetry-sdk",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# PyPI's build for Linux brings CUDA: 5 GB, of which nothing here has any use
_TORCH_FOR_CPUS: Final = "--index-url https://download.pytorch.org/whl/cpu"
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(.*?);.*?extra == ['\"]([a-z-]+)['\"]")


def run(app: Callable[[], Any]) -> None:
    """Run a command line; an error of the protocol goes to stderr, and ends the process with its status."""
    try:
        app()
    except MaskedLarkError as error:
        reason = getattr(error, "reason", None)
        line = f"{type(error).__name__}{f' ({reason.value})' if reason else ''}: {error}"
        _end(line, UNAVAILABLE if isinstance(error, HelperUnavailable) else REFUSED)
    except ModuleNotFoundError as error:
        # A module of our own that is missing is a bug, and no extra that could be installed.
        if error.name is None or error.name.partition(".")[0] in _HOUSES:
            _end_with_traceback()
        _end(how_to_install(error.name, _module_of(error)))
    except OSError as error:
        if error.filename is None and error.errno not in _FULL:  # not about a file of the user's: a bug
            _end_with_traceback()
        about = "" if error.filename is None else f"{error.filename}: "
        what = "; run this as the owner of the file and its folder" if error.errno == errno.EACCES else ""
        _end(f"{about}{error.strerror}{what}")
    except Exception:  # noqa: BLE001  Python would print its message as it is
        _end_with_traceback()


def _end(line: str, status: int = REFUSED) -> NoReturn:
    if logs_json():
        _LOG.error(line)
    else:
        sys.stderr.write(f"{escape(line)}\n")
    sys.exit(status)


def _end_with_traceback() -> NoReturn:
    if logs_json():
        _LOG.exception("a bug ended the command")
    else:
        sys.stderr.write(escape_lines(traceback.format_exc()))
    sys.exit(REFUSED)


def _module_of(error: BaseException) -> str:
    """Return the innermost module of a party in an error's traceback, or that of quickstart.

    Nothing if the traceback has none: what parties share has no extra of its own.
    """
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Its parties are in the traceback too, but only its extra has what all of them need.
    if _ALL_PARTIES in modules:
        return _ALL_PARTIES
    return next((one for one in reversed(modules) if one.partition(".")[0] in _ROOMS), "")


def how_to_install(missing: str, needed_by: str, needs: str = "this command") -> str:
    """Return one line: what is missing, and the command that installs it; of torch first the small build.

    Args:
        missing: The module that could not be imported.
        needed_by: The module that imports it: the extra of the module's party is named if several have the
            part.
        needs: What cannot go on without it.
    """
    top = missing.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(top, top)
    known = _extras()
    extras = [extra for name, extra, _ in known if _same(name, distribution)]
    own = "quickstart" if needed_by == _ALL_PARTIES else _ROOMS.get(needed_by.partition(".")[0])
    extra = own if own in extras else next(iter(extras), None)
    wanted = distribution if extra is None else f"{_OURS}[{extra}]"
    told = f"{top} is not installed, and {needs} needs it: pip install"
    if top != "torch":
        return f"{told} '{wanted}'"
    version = next((version for name, _, version in known if name == top), "")
    return f"{told} {top}{version} {_TORCH_FOR_CPUS}; or, 5 GB on Linux with CUDA, pip install '{wanted}'"


def find_missing(extras: Collection[str]) -> str | None:
    """Return the first package of some of our extras that is not installed; None if all are."""
    from importlib.metadata import PackageNotFoundError, version

    for name, extra, _ in _extras():
        if extra in extras:
            try:
                version(name)
            except PackageNotFoundError:
                return name
    return None


def _same(one: str, other: str) -> bool:
    # PEP 503: these spellings are one name, and metadata has whichever its author wrote.
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def _extras() -> list[tuple[str, str, str]]:
    """Return what each of our extras installs, the extra and the versions; those of extras after them."""
    # Here, so that only a command that fails pays for the import.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires(_OURS) or []
    except PackageNotFoundError:  # run from a folder without being installed
        return []
    listed = [(found[1], found[3], found[2]) for one in declared if (found := _REQUIREMENT.match(one))]
    parts = [one for one in listed if not _same(one[0], _OURS)]
    return parts + [
        (name, extra, version)
        for of, extra, inners in listed
        if _same(of, _OURS)
        for name, inner, version in parts
        if inner in re.split(r"[\[\],]", inners)
    ]

"""How a service's command ends: a refusal becomes one line and an exit status.

A part that is not installed, and a file that the system refuses, become one line too. A bug ends it with a
traceback, in which a message with what others wrote is escaped.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.escape import escape, escape_lines

_HOUSES: Final = ("adserver", "browser_sim", "helper", "maskedlark")
REFUSED: Final = 1
"""Something was wrong or refused; asking again gives the same answer. Wrong options exit with 2."""
UNAVAILABLE: Final = 75
"""A helper did not answer; run the command again later (EX_TEMPFAIL)."""


def run(app: Callable[[], Any]) -> None:
    """Run a command line; an error of the protocol goes to stderr, and ends the process with its status."""
    try:
        app()
    except MaskedLarkError as error:
        reason = getattr(error, "reason", None)
        sys.stderr.write(f"{type(error).__name__}{f' ({reason.value})' if reason else ''}: {error}\n")
        sys.exit(UNAVAILABLE if isinstance(error, HelperUnavailable) else REFUSED)
    except ModuleNotFoundError as error:
        from maskedlark.terminal.missing_parts import how_to_install

        needed_by = _module_of(error)
        if error.name is None or error.name.partition(".")[0] == needed_by.partition(".")[0]:
            _end_with_traceback()
        sys.stderr.write(f"{escape(how_to_install(error.name, needed_by))}\n")
        sys.exit(REFUSED)
    except OSError as error:
        if error.filename is None:
            _end_with_traceback()
        sys.stderr.write(f"{escape(f'{error.filename}: {error.strerror}')}\n")
        sys.exit(REFUSED)
    except Exception:  # noqa: BLE001  Python would print its message as it is
        _end_with_traceback()


def _end_with_traceback() -> NoReturn:
    sys.stderr.write(escape_lines(traceback.format_exc()))
    sys.exit(REFUSED)


def _module_of(error: BaseException) -> str:
    """Return the name of the innermost module of ours in an error's traceback."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((one for one in reversed(modules) if one.partition(".")[0] in _HOUSES), "")

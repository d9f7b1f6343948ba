"""How a service's command ends: a refusal becomes one line and an exit status.

A bug ends it with a traceback, in which a message with what others wrote is escaped.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.escape import escape_lines

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
    except Exception:  # noqa: BLE001  Python would print its message as it is
        sys.stderr.write(escape_lines(traceback.format_exc()))
        sys.exit(REFUSED)

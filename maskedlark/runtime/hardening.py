"""What a server asks of the system before it serves.

Its memory stays out of core files and out of other processes' reach: it holds keys and, at a helper, features
and masks.
"""

import ctypes
import logging
import resource
import sys
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_PR_SET_DUMPABLE: Final = 4


def forbid_core_files() -> None:
    """Forbid core files of this process and its children, and on Linux debuggers of the same user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        _LOG.warning("the kernel does not let this process refuse debuggers")


def allow_open_files(most: int) -> None:
    """Raise this process's limit of open files to `most`, or as far as the system lets it.

    The usual limit, 1,024, is below the connections that an intake has places for; at the limit no connection
    is accepted, whoever's it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < most:
        _LOG.warning("only %d files may be open at once, of %d that connections may need", soft, most)

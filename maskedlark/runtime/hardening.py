"""Keep a server's memory out of core files and out of other processes' reach.

It holds keys and, at a helper, features and masks.
"""

import ctypes
import logging
import resource
import sys
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_PR_SET_DUMPABLE: Final = 4


def forbid_core_files() -> None:
    """No core file of this process or its children, and on Linux no debugger attached by the same user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        _LOG.warning("the kernel does not let this process refuse debuggers")

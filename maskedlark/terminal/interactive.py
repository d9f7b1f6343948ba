"""Whether progress is drawn at all: asked before what draws it is loaded."""

import os
import sys
from typing import Final

# What tells rich to draw though it sees no terminal
_SHOWS_ANYWHERE: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")


def may_be_seen() -> bool:
    """Return whether a terminal or notebook may show bars: otherwise their code is not loaded."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # Python was started without standard error, or it is closed
        is_terminal = False
    return is_terminal or "IPython" in sys.modules or not os.environ.keys().isdisjoint(_SHOWS_ANYWHERE)

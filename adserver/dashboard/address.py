"""The URL of the dashboard, left in the data folder for commands, which load no web framework."""

import time
from pathlib import Path
from typing import Final

from maskedlark.errors import InvalidTask

ADDRESS_FILE: Final = "dashboard.address"
_POLL_S: Final = 0.1


def dashboard_url(data: Path, *, patience_s: float = 0.0) -> str:
    """Return the URL at which the dashboard of a data folder is served.

    Args:
        data: The ad server's folder.
        patience_s: How long one that is not served yet is waited for.

    Raises:
        InvalidTask: none is.
    """
    file, until = data / ADDRESS_FILE, time.monotonic() + patience_s
    try:
        while not file.exists() and time.monotonic() < until:
            time.sleep(_POLL_S)
        return file.read_text().strip()
    except OSError:
        raise InvalidTask(
            f"no dashboard is served from {data}: start `adserver serve` with --dashboard-listen"
        ) from None

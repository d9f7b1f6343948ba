"""Detection of a full disk in advance, while a little room is left."""

import os
from pathlib import Path
from typing import Final

from maskedlark.errors import HelperUnavailable

LEAST_FREE_BYTES: Final = 16 << 20
"""What must be free for a party to be well: room for its database's next transactions."""


def check_room(folder: Path, num_bytes: int = LEAST_FREE_BYTES) -> None:
    """Return if a folder's disk has so many bytes free for this process's user.

    Raises:
        HelperUnavailable: it has not.
    """
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < num_bytes:
        raise HelperUnavailable(f"the disk is full: {free} bytes free, {num_bytes} needed; make room")

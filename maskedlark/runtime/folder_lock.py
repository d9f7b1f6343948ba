"""One process at a time for a party's data folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from maskedlark.errors import InvalidSetting
from maskedlark.runtime.durable_file import private

_LOCK_FILE: Final = "lock"


@contextmanager
def only_process(data: Path, who: str, remedy: str) -> Iterator[None]:
    """Hold a data folder while a `with` block lasts.

    Args:
        data: The folder.
        who: The process that holds such folders, for the message.
        remedy: What to do besides stopping the other one.

    Raises:
        InvalidSetting: another process holds it.
    """
    with open(data / _LOCK_FILE, "wb", opener=private) as lock:
        # `private` sets the mode of a file that it makes: this one may be of an earlier run.
        os.fchmod(lock.fileno(), 0o600)
        try:
            # A lock, not the file's being there: it ends with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidSetting(
                f"another {who} process is using {data}: stop it first, or {remedy}"
            ) from None
        yield

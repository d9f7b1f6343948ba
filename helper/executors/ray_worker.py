"""What runs in a Ray actor: one worker of a helper, with the join token that its operator mounted there.

It knows nothing of Ray. What its methods take and give is sealed or public; what they raise says no more than
what went wrong, for Ray writes it down.
"""

import os
from pathlib import Path
from typing import Final

from helper.executors.handshake import JoinToken
from helper.executors.worker import SegmentWorker
from helper.gradient.exact.self_check import self_check
from maskedlark.errors import InvalidTask
from maskedlark.runtime import gc_tuning
from maskedlark.runtime.hardening import forbid_core_files

JOIN_VARIABLE: Final = "HELPER_JOIN_TOKEN_FILE"
"""Names the file of the join token, in the environment of `ray start` at each machine."""


class RayWorker:
    """One worker, a process of its own."""

    def __init__(self, capacity_bytes: int) -> None:
        """Check this machine's arithmetic, and read the token.

        Raises:
            InvalidTask: there is no token, or others may read it.
            SelfCheckFailed: this machine must not compute.
        """
        forbid_core_files()
        path = os.environ.get(JOIN_VARIABLE)
        if not path:
            raise InvalidTask(f"{JOIN_VARIABLE} is not set where `ray start` ran")
        self._holder = SegmentWorker(JoinToken.read(Path(path)), capacity_bytes)
        self_check()
        gc_tuning.serving()

    def apply(self, challenge: bytes) -> bytes:
        """See `SegmentWorker`."""
        return self._holder.apply(challenge)

    def welcome(self, welcome: bytes) -> None:
        """See `SegmentWorker`."""
        self._holder.welcome(welcome)

    def do(self, shared: bytes, frames: bytes, *pieces: bytes) -> bytes:
        """See `SegmentWorker`; the order comes in pieces."""
        return self._holder.do(b"".join(pieces), shared, frames)

    def stop(self, sealed: bytes) -> None:
        """See `SegmentWorker`."""
        self._holder.stop(sealed)

    def alive(self, sealed: bytes) -> bytes:
        """See `SegmentWorker`."""
        return self._holder.alive(sealed)

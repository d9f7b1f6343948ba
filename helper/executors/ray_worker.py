"""What runs in a Ray actor: one worker of a helper, served with the certificate that its operator put there.

It knows nothing of Ray, which starts it, and what it raises says no more than what went wrong, for Ray writes
it down.
"""

import os
from pathlib import Path
from typing import Final

from helper.executors.worker import SegmentWorker
from helper.executors.worker_service import serve
from helper.gradient.exact.self_check import self_check
from helper.trust.cluster_secrets import worker_tls
from maskedlark.errors import InvalidSetting
from maskedlark.runtime import gc_tuning
from maskedlark.runtime.hardening import forbid_core_files

TLS_VARIABLE: Final = "HELPER_WORKER_TLS"
"""Names the folder of a worker's key and certificate, in the environment of `ray start` at each machine."""


class RayWorker:
    """One worker, as a separate process."""

    def __init__(self, capacity_bytes: int, address: str) -> None:
        """Check this machine's arithmetic, and serve at an address of this machine.

        Raises:
            InvalidSetting: there is no certificate, others may read its key, or the address is taken.
            SelfCheckFailed: this machine must not compute.
        """
        forbid_core_files()  # before a key is read
        folder = os.environ.get(TLS_VARIABLE)
        if not folder:
            raise InvalidSetting(f"{TLS_VARIABLE} is not set where `ray start` ran")
        tls = worker_tls(Path(folder))
        tls.check_own()
        # Before it serves: a worker with wrong arithmetic is never greeted, and joins no fleet.
        self_check()
        gc_tuning.serving()
        self._server, _ = serve(SegmentWorker(capacity_bytes), address, tls)

    def ready(self) -> None:
        """Do nothing: this ends once the worker serves."""

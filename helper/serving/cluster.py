"""How an operator lets a helper use a Ray cluster, and what the helper refuses to do without."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen

WORKER_BYTES: Final = 1 << 30


@frozen
class RayCluster:
    """Where a helper finds its workers.

    Attributes:
        address: host:port of the Ray cluster's head.
        worker_tls: The folder of this machine's key and certificate for its workers.
        worker_bytes: How much of opened segments each worker keeps in memory.
        opens_shares: Whether workers open report shares, with the keys that they get for it.
    """

    address: str
    worker_tls: Path
    worker_bytes: int = WORKER_BYTES
    opens_shares: bool = False

    def check(self, environment: Mapping[str, str] = os.environ) -> None:
        """Refuse a Ray cluster that anyone on its network could use.

        Nothing of records passes through Ray; but whoever may submit work to a Ray cluster runs programs on
        its machines, as the user whose memory holds opened segments.

        Raises:
            InvalidSetting: it is not on loopback, and has no token authentication or no TLS.
        """
        check_machine(self.address.rsplit(":", 1)[0], environment)


def check_machine(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine of a Ray cluster that anyone on its network could use.

    Ray chooses the addresses of its machines: for a head that was started for 127.0.0.1 it reports the
    address of the network card, where it listens. So a helper checks the reported addresses too.

    Raises:
        InvalidSetting: see `RayCluster.check`.
    """
    from maskedlark.rpc.transport import is_loopback  # gRPC, which help does without

    if not is_loopback(host):
        wanted = {"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "1"}
        if lacking := [f"{name}={value}" for name, value in wanted.items() if environment.get(name) != value]:
            needed = " and ".join(lacking)
            raise InvalidSetting(
                f"the Ray cluster at {host} is not on loopback: set {needed} in the environment"
            )

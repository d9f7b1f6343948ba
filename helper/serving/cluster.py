"""How an operator lets a helper use a Ray cluster, and what the helper refuses to do without."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen

WORKER_BYTES: Final = 1 << 30


@frozen
class RayCluster:
    """Where a helper finds its workers.

    Attributes:
        address: host:port of the Ray cluster's head.
        join_token: The file of the secret that workers have to have too.
        worker_bytes: How much of opened segments each worker keeps in memory.
        opens_shares: Whether workers open report shares, with the keys that they get for it.
    """

    address: str
    join_token: Path
    worker_bytes: int = WORKER_BYTES
    opens_shares: bool = False

    def check(self, environment: Mapping[str, str] = os.environ) -> None:
        """Refuse a Ray cluster that anyone on its network could use.

        Nothing that passes through Ray can be read or forged without the join token; but whoever may submit
        work to a Ray cluster runs programs on its machines, as the user whose memory holds opened segments.

        Raises:
            InvalidTask: it is not on loopback, and has no token authentication or no TLS.
        """
        check_machine(self.address.rsplit(":", 1)[0], environment)


def check_machine(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine of a Ray cluster that anyone on its network could use.

    Ray chooses the addresses of its machines: for a head that was started for 127.0.0.1 it reports the
    address of the network card, where it listens. So a helper checks the reported addresses too.

    Raises:
        InvalidTask: see `RayCluster.check`.
    """
    from maskedlark.rpc.transport import is_loopback  # gRPC, which help does without

    if not is_loopback(host):
        wanted = {"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "1"}
        if lacking := [f"{name}={value}" for name, value in wanted.items() if environment.get(name) != value]:
            needed = " and ".join(lacking)
            raise InvalidTask(
                f"the Ray cluster at {host} is not on loopback: set {needed} in the environment"
            )

"""Where a dashboard listens, without what serves it, which is an extra."""

from collections.abc import Sequence

from maskedlark.frozen import frozen


@frozen
class DashboardSettings:
    """Where a dashboard listens.

    Attributes:
        listen: host:port, port 0 for any. Beyond loopback only with TLS.
        hosts: Names under which it is reached, besides the one in `listen`.
    """

    listen: str
    hosts: Sequence[str] = ()

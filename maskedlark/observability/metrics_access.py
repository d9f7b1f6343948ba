"""How the port of metrics is protected: what an option says, without what serves it."""

from enum import StrEnum, unique


@unique
class MetricsAccess(StrEnum):
    """Access to the port of metrics: from this machine alone, or from another over TLS or in plaintext.

    It asks for no password: beyond loopback, a firewall or a network policy decides which machines may call
    it.
    """

    LOOPBACK = "loopback"
    TLS = "tls"
    PLAINTEXT = "plaintext"

"""How the port of metrics is protected: what an option says, without what serves it."""

from enum import StrEnum, unique


@unique
class MetricsAccess(StrEnum):
    """Who may reach the port of metrics: this machine alone, or another over TLS or in plaintext.

    It asks for no password: beyond loopback, a firewall or a network policy decides who may call it.
    """

    LOOPBACK = "loopback"
    TLS = "tls"
    PLAINTEXT = "plaintext"

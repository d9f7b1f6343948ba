"""How soon a dead peer is noticed, without gRPC: command lines import it."""

from maskedlark.frozen import frozen


@frozen
class Keepalive:
    """How soon a dead peer is noticed while a call waits for it, however long that call may take.

    The client pings on a connection that carries a call and is silent otherwise. gRPC answers pings by
    itself, whatever the server's body computes.

    Attributes:
        every_s: Between two pings.
        answer_s: How long an answer may take; then every call on the connection fails, as
            `HelperUnavailable`.
    """

    every_s: float = 10.0
    answer_s: float = 10.0

    @property
    def noticed_within_s(self) -> float:
        """The longest that a peer can be dead unnoticed."""
        return self.every_s + self.answer_s

    def of_client(self) -> tuple[tuple[str, int], ...]:
        """Return channel options."""
        return (
            ("grpc.keepalive_time_ms", round(1_000 * self.every_s)),
            ("grpc.keepalive_timeout_ms", round(1_000 * self.answer_s)),
            # Without it gRPC waits a minute, whatever the line above says.
            ("grpc.http2.ping_timeout_ms", round(1_000 * self.answer_s)),
            ("grpc.http2.max_pings_without_data", 0),  # no limit: a round is silent for minutes
        )

    def of_server(self) -> tuple[tuple[str, int], ...]:
        """Return server options that permit what `of_client` sends, twice over.

        GRPC's own limit, five minutes, would end the connection.
        """
        return (("grpc.http2.min_ping_interval_without_data_ms", round(500 * self.every_s)),)

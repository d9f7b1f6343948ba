"""How to reach the two helpers, and clients of both."""

from contextlib import ExitStack

from sqlalchemy import Engine

from adserver.peers.client import HelperClient
from adserver.peers.deadlines import ROUND_DEADLINE_S
from adserver.peers.retrying import BRIEF, Backoff
from adserver.store.receipts import ReceiptBook
from maskedlark.frozen import frozen
from maskedlark.rpc.tls_files import TlsFiles


@frozen
class Peers:
    """The two helpers, and how to reach them.

    Attributes:
        addresses: host:port, by role.
        tls: This server's files, or None for plaintext on loopback.
        deadline_s: What a helper has for an answer that takes it no time.
        round_deadline_s: What it has for what it computes.
        backoff: How long one that does not answer is asked again.
    """

    addresses: tuple[str, str]
    tls: TlsFiles | None
    deadline_s: float
    round_deadline_s: float = ROUND_DEADLINE_S
    backoff: Backoff = BRIEF

    def open(self, stack: ExitStack, engine: Engine) -> tuple[HelperClient, HelperClient]:
        """Create clients of both helpers, closed when the stack unwinds; receipts go to the database."""
        book = ReceiptBook(engine)
        first, second = (
            stack.enter_context(
                HelperClient(address, self.tls, self.deadline_s, book, round_deadline_s=self.round_deadline_s)
            )
            for address in self.addresses
        )
        return first, second

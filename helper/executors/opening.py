"""The opening of report shares as work for workers (`dispatch`): whole chunks to each.

A chunk is not divided among workers, except for what one order does not carry: an order of few shares takes
the head not much less than one of a thousand, and many workers would wait for it. Each has chunks of its own
instead, which callers bring at the same time (`Executor.opens_at_once`).
"""

from collections.abc import Sequence
from typing import Final

from helper.executors.dispatch import PartsToSend
from helper.executors.opening_orders import read_opened, write_order
from helper.executors.orders import MOST_CARRIED
from helper.executors.processes import MAX_CHUNK
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.task import REPORT_ID_BYTES

_WORTH_A_CALL: Final = 256
"""Fewer shares take so little time to open that more of them go at once, in whichever way."""
_NUMBERS_BYTES: Final = 3 * 8
"""Of a share in an order: its time, its key's id and two lengths."""


@frozen(eq=False)
class OpeningWork:
    """Shares in parts, and what was found in them, by the numbers of the parts."""

    opener: ShareOpener
    parts: Sequence[Sequence[ShareForHelper]]
    opened: dict[int, PreparedShares]
    names: None = None
    at_once: int = 2

    @property
    def count(self) -> int:
        """See `Work`."""
        return len(self.parts)

    def order(self, parts: Sequence[int], *, is_sent: bool) -> PartsToSend:
        """See `Work`."""
        del is_sent
        (part,) = parts
        kind, encoded = write_order(self.opener, self.parts[part])
        return PartsToSend(kind=kind, parts=encoded)

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        (part,) = parts
        self.opened[part] = read_opened(answer, self.opener, self.parts[part])

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`; no frames are sent."""


def divide(incoming: Sequence[ShareForHelper]) -> list[Sequence[ShareForHelper]]:
    """Divide shares into orders: as many as fit each, in parts of about equal size."""
    a_share = REPORT_ID_BYTES + _NUMBERS_BYTES + len(incoming[0].share.ciphertext)
    carried = MOST_CARRIED // a_share
    most = min(MAX_CHUNK, carried) if carried >= _WORTH_A_CALL else MAX_CHUNK
    parts = -(-len(incoming) // most)
    size = -(-len(incoming) // parts)
    return [incoming[start : start + size] for start in range(0, len(incoming), size)]

"""The opening of report shares as work for workers (`dispatch`): whole chunks to each.

A chunk is not divided among workers, except into orders of at most `MAX_CHUNK` shares: an order of few shares
takes the head not much less than one of a thousand, and many workers would wait for it. Each has chunks of
its own instead, which callers bring at the same time (`Executor.opens_at_once`).
"""

from collections.abc import Sequence

from helper.executors.dispatch import PartsToSend
from helper.executors.opening_orders import longest_answer, read_opened, write_order
from helper.executors.processes import MAX_CHUNK
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener


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
        most_bytes = longest_answer(self.opener.task, len(self.parts[part]))
        return PartsToSend(kind=kind, parts=encoded, answer_bytes=most_bytes)

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        (part,) = parts
        self.opened[part] = read_opened(answer, self.opener, self.parts[part])

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`; no frames are sent."""


def divide(incoming: Sequence[ShareForHelper]) -> list[Sequence[ShareForHelper]]:
    """Divide shares into orders of about equal size."""
    parts = -(-len(incoming) // MAX_CHUNK)
    size = -(-len(incoming) // parts)
    return [incoming[start : start + size] for start in range(0, len(incoming), size)]

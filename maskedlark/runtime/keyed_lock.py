"""One at a time for each key: what two callers of different tasks do, they do at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True, kw_only=True)
class _Turn:
    """The lock of one key, and how many callers hold it or wait for it."""

    lock: Lock = field(default_factory=Lock)
    callers: int = 0


class KeyedLock:
    """Locks by key.

    Nothing is kept of a key that no caller holds or waits for, whatever keys callers make up.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns: dict[bytes, _Turn] = {}

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._turns)

    @contextmanager
    def hold(self, key: bytes) -> Iterator[None]:
        """Wait until no other caller acts under this key, then act."""
        # Counted before the wait, so that the one who leaves does not drop a lock that another waits for.
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.callers += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._lock:
                turn.callers -= 1
                if not turn.callers:
                    del self._turns[key]

"""Pauses of the job worker, on a clock that is never set back."""

from collections.abc import Callable


class ExponentialBackoff:
    """A pause that is twice as long each time, up to a limit, until things are well again."""

    def __init__(self, *, first_s: float, longest_s: float, monotonic: Callable[[], float]) -> None:
        """Start without a pause; `monotonic` returns seconds."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._monotonic = monotonic
        self._next_s = first_s
        self._until_s = 0.0

    @property
    def is_over(self) -> bool:
        """True while there is no pause."""
        return self._monotonic() >= self._until_s

    def begin(self) -> float:
        """Pause from now on; how long, in seconds. One that has not ended yet is not lengthened."""
        now_s = self._monotonic()
        if now_s >= self._until_s:
            self._until_s = now_s + self._next_s
            self._next_s = min(2 * self._next_s, self._longest_s)
        return self._until_s - now_s

    def end(self) -> None:
        """Reset after a success: no pause, and the next one is short."""
        self._next_s = self._first_s
        self._until_s = 0.0

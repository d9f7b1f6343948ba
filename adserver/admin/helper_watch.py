"""What is known of both helpers: asked every few seconds, so that no page waits for one that is down."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol

from sqlalchemy import Engine

from adserver.peers.replies import HelperStatus
from adserver.store.database import Clock
from adserver.store.helper_keys import first_seen
from maskedlark.errors import MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.periodic import IsStopped, Periodic
from maskedlark.utc import format_utc

EVERY_S: Final = 5.0
# After so many intervals without an answer a helper is not well, though no look at it has failed yet
_MISSED: Final = 3


class _AskedHelper(Protocol):
    """What is watched; `adserver.peers.client.HelperClient` is one."""

    address: str

    def status(self) -> HelperStatus:
        """Return the helper's identity and what it holds."""


@frozen
class _SeenKey:
    """One of a helper's HPKE keys.

    Attributes:
        key_id: As reports name it.
        suite: What it is sealed with.
        first_seen_at: Unix seconds: when this ad server first saw it.
    """

    key_id: int
    suite: str
    first_seen_at: float


@frozen
class HelperHealth:
    """A helper as it was last seen.

    Attributes:
        role: 0 or 1.
        address: host:port.
        is_well: Whether it answered the last time and not long ago, refuses no calls, and has keys to seal
            to; None before the first answer.
        cause: Why it is not well.
        answered_at: When it last answered, in Unix seconds; None: never since this server started.
        latency_ms: How long that answer took.
        status: What it said.
        keys: Its HPKE keys, the newest first.
    """

    role: int
    address: str
    is_well: bool | None = None
    cause: str = ""
    answered_at: float | None = None
    latency_ms: float | None = None
    status: HelperStatus | None = None
    keys: tuple[_SeenKey, ...] = ()


class HelperWatch:
    """Asks both helpers now and then. Start it, and stop it."""

    def __init__(
        self,
        engine: Engine,
        helpers: tuple[_AskedHelper, _AskedHelper],
        clock: Clock,
        *,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch helpers; `elapsed` measures how long an answer takes, in seconds."""
        self._engine = engine
        self._helpers = helpers
        self._clock = clock
        self._elapsed = elapsed
        self._lock = Lock()
        self._sights = [
            HelperHealth(role=role, address=helper.address) for role, helper in enumerate(helpers)
        ]
        self._heard_s = [0.0, 0.0]
        # One for each, so that a helper that hangs does not delay the look at the other
        self._threads = [
            Periodic(
                partial(self._look_at, role),
                name=f"watch-helper-{role}",
                every_s=EVERY_S,
                # Whatever fails is logged: a watch that ended would show the last state for ever
                survives=(Exception,),
            )
            for role in (0, 1)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, without waiting for a helper that does not answer."""
        for thread in self._threads:
            thread.stop(waits=False)

    def sights(self) -> tuple[HelperHealth, ...]:
        """Return the health of both helpers, by role."""
        now_s = self._elapsed()
        with self._lock:
            return tuple(map(partial(self._with_silence, now_s), self._sights))

    def _with_silence(self, now_s: float, sight: HelperHealth) -> HelperHealth:
        """Return the same health, not well if the helper has been silent for several intervals."""
        is_silent = now_s - self._heard_s[sight.role] > _MISSED * EVERY_S
        if not (is_silent and sight.is_well and sight.answered_at is not None):
            return sight
        # Without how long ago that is, so that pages stay the same
        cause = f"no answer from the helper at {sight.address} since {format_utc(sight.answered_at)}"
        return replace(sight, is_well=False, cause=cause)

    def _look_at(self, role: int, _is_stopped: IsStopped) -> None:
        self.look(role)

    def look(self, role: int) -> None:
        """Ask one helper, and remember what it said."""
        helper, begun = self._helpers[role], self._elapsed()
        try:
            status = helper.status()
        except MaskedLarkError as error:
            self._keep(role, is_well=False, cause=str(error))
            return
        except Exception as error:
            cause = f"the look at the helper at {helper.address} failed ({type(error).__name__}): see the log"
            self._keep(role, is_well=False, cause=cause)
            raise
        heard_s, now_s = self._elapsed(), self._clock()
        cause, keys = status.why_not_well(helper.address, now_s), status.keys.key_list.keys
        self._heard_s[role] = heard_s
        # Before the database is asked, which may be away
        self._keep(
            role,
            is_well=not cause,
            cause=cause,
            answered_at=now_s,
            latency_ms=1_000 * (heard_s - begun),
            status=status,
        )
        seen = first_seen(self._engine, [key.public_key for key in keys], now_s=now_s)
        self._keep(
            role,
            keys=tuple(
                _SeenKey(key_id=key.key_id, suite=key.suite.value, first_seen_at=at)
                for key, at in zip(keys, seen, strict=True)
            ),
        )

    def _keep(self, role: int, **seen: Any) -> None:
        with self._lock:
            self._sights[role] = replace(self._sights[role], **seen)

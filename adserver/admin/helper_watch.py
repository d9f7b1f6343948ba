"""What is known of both helpers: asked every few seconds, so that no page waits for one that is down."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adserver.peers.replies import HelperStatus
from adserver.store.database import Clock
from adserver.store.helper_keys import first_seen
from maskedlark.errors import MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.periodic import IsStopped, Periodic

EVERY_S: Final = 5.0


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
        is_well: Whether it answered the last time, and refuses no calls; None before the first answer.
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
        # One for each, so that a helper that hangs does not delay the look at the other
        self._threads = [
            Periodic(
                partial(self._look_at, role),
                name=f"watch-helper-{role}",
                every_s=EVERY_S,
                # A helper or database that is away for a while does not end the watch
                survives=(MaskedLarkError, SQLAlchemyError),
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
        with self._lock:
            return tuple(self._sights)

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
        latency_ms = 1_000 * (self._elapsed() - begun)
        now_s, keys = self._clock(), status.keys.key_list.keys
        seen = first_seen(self._engine, [key.public_key for key in keys], now_s=now_s)
        self._keep(
            role,
            is_well=not status.not_well,
            cause=status.not_well,
            answered_at=now_s,
            latency_ms=latency_ms,
            status=status,
            keys=tuple(
                _SeenKey(key_id=key.key_id, suite=key.suite.value, first_seen_at=at)
                for key, at in zip(keys, seen, strict=True)
            ),
        )

    def _keep(self, role: int, **seen: Any) -> None:
        with self._lock:
            self._sights[role] = replace(self._sights[role], **seen)

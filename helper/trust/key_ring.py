"""The HPKE keys of a helper over time.

Pending, active, expired; pure, so that every rule about them stands here.

A new key is *pending* until browsers may use it; then it is *active* and published first. The keys before it
stay active, so that reports sealed to them still open, until their overlap is over; then they are *expired*
and their secrets are erased. Ids are never used again: an expired key keeps its place without its secret.
"""

from dataclasses import replace
from enum import StrEnum, unique
from typing import Annotated, Final, Self

from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.errors import InvalidSetting
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import HpkeKey, OpeningKey

MAX_KEY_ID: Final = 255
MAX_PUBLISHED: Final = 16
LIST_LIFE_S: Final = 3 * 86_400
"""How long a browser may use one list, and so how long a helper may be away before browsers stop sealing."""
LIST_STEP_S: Final = 3_600
"""Lists of one hour are the same, so that bundles do not change each time that a helper is asked."""


@unique
class KeyState(StrEnum):
    """Where a key is in its life."""

    PENDING = "pending"
    ACTIVE = "active"
    EXPIRED = "expired"


@canonical
class RingKey:
    """One key.

    Attributes:
        key_id: Never used twice by one helper.
        suite: What it is for.
        active_from: When browsers may begin to use it (Unix seconds).
        expires_at: When it opens no longer, or None while no newer key has followed it.
        secret: The private key; empty once erased.
    """

    key_id: Annotated[int, Field(ge=0, le=MAX_KEY_ID)]
    suite: HpkeSuite
    active_from: Annotated[int, Field(ge=0)] = 0
    expires_at: Annotated[int, Field(ge=0)] | None = None
    secret: bytes = Field(max_length=96, repr=False)

    def state(self, now: float) -> KeyState:
        """Return pending, active or expired at a moment."""
        if not self.secret or (self.expires_at is not None and now >= self.expires_at):
            return KeyState.EXPIRED
        return KeyState.ACTIVE if now >= self.active_from else KeyState.PENDING


class Ring(tuple[RingKey, ...]):
    """All keys that a helper ever had, the oldest first."""

    __slots__ = ()

    @classmethod
    def first(cls, suite: HpkeSuite) -> Self:
        """Create the ring of a new helper: one key, active from the start."""
        return cls((_fresh(1, suite, active_from=0),))

    def opening_keys(self, now: float) -> tuple[OpeningKey, ...]:
        """Return the keys that open at a moment.

        Pending ones do too: a browser's or another machine's clock may run ahead.
        """
        return tuple(_opening(key) for key in self if key.state(now) is not KeyState.EXPIRED)

    def keys_to_publish(self, now: float) -> tuple[HpkeKey, ...]:
        """Return the keys to seal to at a moment, newest first; browsers use the first.

        Raises:
            InvalidSetting: all keys have expired.
        """
        active = [key for key in self if key.state(now) is KeyState.ACTIVE]
        pending = [key for key in self if key.state(now) is KeyState.PENDING]
        if not active and not pending:
            raise InvalidSetting("all HPKE keys have expired: create one with `lark-helper keys rotate`")
        # None is active after a clock that ran ahead was set back: the next key is served early, as it opens
        # already.
        active = active or [min(pending, key=lambda key: (key.active_from, key.key_id))]
        newest = sorted(active, key=lambda key: (key.active_from, key.key_id), reverse=True)[:MAX_PUBLISHED]
        return tuple(_opening(key).public() for key in newest)

    def list_ends_at(self, now: float) -> int:
        """Return the last second at which the current list is valid, within its first key's life."""
        (newest, *_) = self.keys_to_publish(now)
        expires_at = next(key.expires_at for key in self if key.key_id == newest.key_id)
        # Never past the key itself: a browser must not seal with a key whose secret is erased.
        ends_at = int(now) // LIST_STEP_S * LIST_STEP_S + LIST_LIFE_S
        return ends_at if expires_at is None else min(ends_at, expires_at)

    def rotate(self, *, now: float, suite: HpkeSuite | None, active_in_s: int, overlap_s: int) -> "Ring":
        """Return the ring with a new key. Called by the operator.

        Args:
            now: Unix seconds.
            suite: Of the new key; None for that of the newest one.
            active_in_s: How long the new key stays pending.
            overlap_s: How long the keys before it open from then on. Reports that wait longer at the ad
                server are lost.

        Raises:
            InvalidSetting: all ids are used up.
        """
        newest = max(self, key=lambda key: key.key_id)
        key_id = newest.key_id + 1
        if key_id > MAX_KEY_ID:
            raise InvalidSetting(
                f"all {MAX_KEY_ID} key ids are used, and an id is never reused: create a new identity "
                "for this helper"
            )
        # The overlap begins when the new key is active: until then browsers use the old one.
        active_from = int(now) + active_in_s
        kept = (_erase_if_expired(_ending(key, active_from + overlap_s), now) for key in self)
        return Ring((*kept, _fresh(key_id, suite or newest.suite, active_from=active_from)))


def _opening(key: RingKey) -> OpeningKey:
    return OpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret)


def _fresh(key_id: int, suite: HpkeSuite, *, active_from: int) -> RingKey:
    secret = OpeningKey.generate(key_id=key_id, suite=suite).secret_bytes()
    return RingKey(key_id=key_id, suite=suite, active_from=active_from, secret=secret)


def _ending(key: RingKey, expires_at: int) -> RingKey:
    """Return the key with an end, if it had none."""
    return key if key.expires_at is not None else replace(key, expires_at=expires_at)


def _erase_if_expired(key: RingKey, now: float) -> RingKey:
    """Return the key without its secret if it is expired."""
    return replace(key, secret=b"") if key.state(now) is KeyState.EXPIRED else key

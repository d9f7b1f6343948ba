"""When this ad server first saw a helper's public key: how old a key is, the helper does not say."""

from collections.abc import Sequence
from hashlib import sha256

from sqlalchemy import Engine, select

from adserver.store.database import insert_or_ignore
from adserver.store.schema import helper_keys
from maskedlark.runtime.database import reading


def first_seen(engine: Engine, public_keys: Sequence[bytes], *, now_s: float) -> list[float]:
    """Return when each key was first seen, in Unix seconds; now for a key that is new."""
    digests = [sha256(key).digest() for key in public_keys]
    asked = select(helper_keys).where(helper_keys.c.fingerprint.in_(digests))
    with reading(engine) as connection:
        known = {bytes(row.fingerprint): row.first_seen_at for row in connection.execute(asked)}
    new = [digest for digest in dict.fromkeys(digests) if digest not in known]
    if new:
        rows = [{"fingerprint": digest, "first_seen_at": now_s} for digest in new]
        # Of two servers that see a key at the same time, one's moment stays.
        with engine.begin() as connection:
            connection.execute(insert_or_ignore(engine, helper_keys, ["fingerprint"]), rows)
    return [known.get(digest, now_s) for digest in digests]

"""Digests of the updates that jobs without helpers have accepted: each update counts once."""

from typing import Final

from sqlalchemy import Connection, bindparam, select

from adserver.store.schema import local_updates

_SEEN: Final = select(local_updates.c.digest).where(
    local_updates.c.job_id == bindparam("job"),
    local_updates.c.digest.in_(bindparam("offered", expanding=True)),
)


def accepted_before(connection: Connection, job_id: bytes, offered: list[bytes]) -> set[bytes]:
    """Return those of some digests whose updates were accepted before."""
    found = connection.execute(_SEEN, {"job": job_id, "offered": offered})
    return {bytes(digest) for digest in found.scalars()}

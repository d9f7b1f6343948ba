"""The versions of the protocol that this software implements, and the check that a peer does so too.

    check_spoken(reply.protocols, "the helper at north:7001")

A helper tells its versions in its status; the ad server checks them before anything else of it. Objects carry
their own version, which `maskedlark.canonical.decode` checks. See docs/reference/stability.md.
"""

from collections.abc import Iterable
from typing import Final

from maskedlark.errors import UnsupportedVersion

PROTOCOLS: Final = (1,)
"""Ascending. An ad server makes tasks of the last one."""


def check_spoken(versions: Iterable[int], peer: str) -> None:
    """Refuse a peer that does not implement the newest version that this software does.

    Args:
        versions: What the peer says that it implements; nothing means version 1.
        peer: The peer's name for the message.

    Raises:
        UnsupportedVersion: naming the versions of both, and the party to upgrade.
    """
    spoken = sorted(set(versions)) or [1]
    if PROTOCOLS[-1] in spoken:
        return
    behind = peer if spoken[-1] < PROTOCOLS[-1] else "this software"
    raise UnsupportedVersion(
        f"{peer} implements protocol version {_format_versions(spoken)}, "
        f"this software {_format_versions(PROTOCOLS)}: upgrade {behind}"
    )


def _format_versions(versions: Iterable[int]) -> str:
    """Return versions as text, ten at most: a peer may tell any number."""
    return ", ".join(str(one) for one in [*versions][:10])

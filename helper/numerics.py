"""The name of a helper's numerics: part of every round's transcript, so that helpers of different versions can never mix."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from helper.gradient.engine import GradientEngine
from maskedlark.canonical import digest

_PATHS: Final = ("exact", "general")
_DECIDE_BITS: Final = ("numpy", "torch")
"""The libraries whose version can change the last bit of the general path."""


def numerics_digest(engine: GradientEngine) -> bytes:
    """32 bytes that are equal at two helpers only if their engines for a job are meant to give the same bits."""
    return _path_digest(engine.path)


def software_digest() -> bytes:
    """32 bytes for a helper's status: equal at two helpers whose engines are meant to give the same bits for any job."""
    return digest("numerics of all paths", *map(_path_digest, _PATHS))


def _path_digest(path: str) -> bytes:
    return digest("numerics", path.encode(), *(f"{name} {_version(name)}".encode() for name in _DECIDE_BITS))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"

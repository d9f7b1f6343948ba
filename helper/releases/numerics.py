"""The name of a helper's numerics.

Part of every round's transcript, so that helpers of different versions can never mix.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from helper.gradient.engine import GradientEngine
from helper.gradient.exact.self_check import NUMERICS_DIGEST
from maskedlark.canonical import digest

# The libraries whose version can change the last bit of the general path.
_DECIDE_GENERAL_BITS: Final = ("numpy", "torch")


def numerics_digest(engine: GradientEngine) -> bytes:
    """Return 32 bytes that identify the numerics of an engine.

    Equal at two helpers only if their engines for a job are meant to give the same bits. On the general path
    they depend on the processor too: see `helper.gradient.general.processor`.
    """
    return _exact_digest() if engine.path == "exact" else digest("general", _general_digest(), _processor())


def software_digest() -> bytes:
    """Return 32 bytes for a helper's status: of its software alone, so without loading torch.

    Equal at two helpers whose engines give the same bits for any job on the exact path, and on the general
    path if their processors do.
    """
    return digest("numerics of all paths", _exact_digest(), _general_digest())


def _exact_digest() -> bytes:
    """Return the digest of the golden vectors, which a helper reproduces before it serves.

    Versions of libraries do not count: they change no integer.
    """
    return digest("exact numerics", NUMERICS_DIGEST)


def _general_digest() -> bytes:
    return digest("general numerics", *(f"{name} {_version(name)}".encode() for name in _DECIDE_GENERAL_BITS))


def _processor() -> bytes:
    """Return this processor's results for the general path's golden vectors."""
    from helper.gradient.general.processor import golden_digest  # torch, which only such jobs need

    return golden_digest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"

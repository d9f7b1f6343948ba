"""Why a client does not accept a server's certificate, in plain words: the same over HTTPS and over gRPC."""

import ssl
from typing import Final

from maskedlark.errors import InvalidSetting

EXPIRED: Final = "its certificate has expired: it must renew it, and you must trust the new one"
NOT_FOR_HOST: Final = (
    "its certificate is not for this host name: call it by a name that is in its certificate"
)
NOT_TRUSTED: Final = (
    "its certificate is none of those that are trusted here: compare it with the one that its operator gives "
    "you, and trust that"
)
# OpenSSL's X509_V_ERR_ codes (x509_vfy.h): NOT_YET_VALID, HAS_EXPIRED, HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
_MEANINGS: Final = {
    9: "its certificate is not valid yet: check the clocks of both machines",
    10: EXPIRED,
    62: NOT_FOR_HOST,
    64: NOT_FOR_HOST,
}
# UNABLE_TO_GET_ISSUER_CERT, DEPTH_ZERO_SELF_SIGNED_CERT, SELF_SIGNED_CERT_IN_CHAIN,
# UNABLE_TO_GET_ISSUER_CERT_LOCALLY, UNABLE_TO_VERIFY_LEAF_SIGNATURE
_UNKNOWN_SIGNERS: Final = frozenset({2, 18, 19, 20, 21})


def explain_rejection(error: BaseException, trust_advice: str) -> str | None:
    """Say why an HTTPS client did not accept a certificate; None if an error has another cause.

    Args:
        error: What the client raised; the causes that it wraps are searched.
        trust_advice: How the caller trusts a certificate, to follow "trust that".
    """
    cause: object = error
    # urllib names the cause `reason`, httpx and httpcore chain it
    while isinstance(cause, BaseException) and not isinstance(cause, ssl.SSLCertVerificationError):
        reason = getattr(cause, "reason", None)
        cause = reason if isinstance(reason, BaseException) else cause.__cause__ or cause.__context__
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return None
    if cause.verify_code in _UNKNOWN_SIGNERS:
        return NOT_TRUSTED + trust_advice
    # OpenSSL's words are its own and not the server's
    return _MEANINGS.get(cause.verify_code) or f"its certificate is not accepted: {cause.verify_message}"


def raise_if_rejected(error: BaseException, server: str, trust_advice: str) -> None:
    """Raise at once if a client did not accept a server's certificate: the same request fails again.

    Args:
        error: What the client raised.
        server: Names the server in the error.
        trust_advice: As for `explain_rejection`.

    Raises:
        InvalidSetting: the certificate is for another host, not trusted, or not valid now.
    """
    why = explain_rejection(error, trust_advice)
    if why is not None:
        raise InvalidSetting(f"{server}: {why}") from None

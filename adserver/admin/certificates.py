"""How long certificates between the parties last: this server's own, and those that it trusts peers by."""

from pathlib import Path

from cryptography import x509

from adserver.messages.site import CertificateMessage
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.trust import fingerprint, names_in


def read_certificates(files: TlsFiles | None) -> tuple[CertificateMessage, ...]:
    """Return every certificate that this server shows or trusts; none on plaintext loopback."""
    if files is None:
        return ()
    return tuple(
        _certificate(one, whose, path)
        for whose, path in (("this ad server", files.certificate), ("a peer", files.trusted_authorities))
        for one in _read(path)
    )


def _read(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):  # it is being replaced, or holds none
        return []


def _certificate(one: x509.Certificate, whose: str, path: Path) -> CertificateMessage:
    return CertificateMessage(
        whose=whose,
        names=tuple(sorted(names_in(one))),
        fingerprint=fingerprint(one),
        ends_at=one.not_valid_after_utc.timestamp(),
        file=path.name,
    )

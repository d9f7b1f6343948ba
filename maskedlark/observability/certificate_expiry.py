"""When a server's certificates end, as a metric: its own, and the first of those that it trusts peers by."""

from collections.abc import Iterable

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from maskedlark.errors import InvalidTask
from maskedlark.rpc.tls_files import TlsFiles


class CertificateExpiry(Collector):
    """Reads the files at each scrape, so that a renewal shows; tells nothing while they do not fit."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files

    def collect(self) -> Iterable[Metric]:
        """Return the expiry times, in Unix seconds. Called at each scrape."""
        family = GaugeMetricFamily(
            "maskedlark_certificate_expires_timestamp_seconds",
            "When the server's own certificate ends, and the first of those that it trusts.",
            labels=["certificate"],
        )
        try:
            contents = self._files.read()
        except InvalidTask:
            return [family]
        for name, pem in (("own", contents.certificate), ("trusted", contents.trusted_authorities)):
            # Of its own chain the first is the certificate, of the trusted ones each may be some peer's.
            found = x509.load_pem_x509_certificates(pem) if pem.strip() else []
            ends = [one.not_valid_after_utc.timestamp() for one in (found[:1] if name == "own" else found)]
            if ends:
                family.add_metric([name], min(ends))
        return [family]

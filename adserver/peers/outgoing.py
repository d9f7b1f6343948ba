"""The messages by which a helper gets the shares of a preparation."""

from collections.abc import Iterable, Iterator, Sequence

from maskedlark.reports.dataset import ShareColumns, ShareForHelper
from protos import helper_pb2


class OutgoingShares:
    """The requests of a preparation.

    Remembers the size of each chunk that was sent, and the error that ended them, if one did.
    """

    def __init__(
        self, header: helper_pb2.PrepareRequest, share_chunks: Iterable[Sequence[ShareForHelper]]
    ) -> None:
        self._header = header
        self._chunks = share_chunks
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[helper_pb2.PrepareRequest]:
        yield self._header
        try:
            for chunk in self._chunks:
                self.sizes.append(len(chunk))  # before it leaves, so that no reply can come too early
                yield _request_of(chunk)
            yield helper_pb2.PrepareRequest(end={})
        except Exception as error:
            self.error = error
            raise


def _request_of(chunk: Sequence[ShareForHelper]) -> helper_pb2.PrepareRequest:
    """Build the request with a chunk of shares.

    Built of plain fields: messages made of messages copy each, and take several times as long.
    """
    of = ShareColumns.of(chunk)
    shares = [
        {"report_id": report_id, "time_bucket": bucket, "share": {"key_id": key_id, "ciphertext": ciphertext}}
        for report_id, bucket, key_id, ciphertext in zip(
            of.report_ids, of.time_buckets, of.key_ids, of.ciphertexts, strict=True
        )
    ]
    return helper_pb2.PrepareRequest(chunk={"shares": shares})

"""A receipt: the ledger's position, which a helper sends with its answers and receives with later calls.

A helper detects by it that its ledger was rolled back (`helper.ledger.witness`). For the ad server it is a
name and a number, with a tag that only the helper can compute. It travels as binary metadata of the calls.
"""

from typing import Any, Final, Self

from maskedlark.frozen import frozen

METADATA_KEY: Final = "maskedlark-receipt-bin"
_HELPER_BYTES: Final = 16
_SEQUENCE_BYTES: Final = 8
_DIGEST_BYTES: Final = 32
PLACE_BYTES: Final = _HELPER_BYTES + _SEQUENCE_BYTES
"""Of one helper's encoded receipts, the later one has the greater first bytes, so many."""
_BYTES: Final = _HELPER_BYTES + _SEQUENCE_BYTES + 2 * _DIGEST_BYTES
_MAX_SEQUENCE: Final = (1 << 63) - 1  # of a signed integer in a database


@frozen
class Receipt:
    """Where a helper's ledger stood.

    Attributes:
        helper_id: 16 bytes that stand for the helper's keys.
        sequence: How often the ledger had moved on.
        head: 32 bytes, the digest of all that it had committed.
        tag: 32 bytes, the helper's own authentication of the two.
    """

    helper_id: bytes
    sequence: int
    head: bytes
    tag: bytes

    def encode(self) -> bytes:
        """Encode the wire form, 88 bytes."""
        return self.helper_id + self.sequence.to_bytes(_SEQUENCE_BYTES, "big") + self.head + self.tag

    @classmethod
    def decode(cls, encoded: bytes) -> Self | None:
        """Parse a receipt; None if the bytes are not a receipt."""
        if len(encoded) != _BYTES:
            return None
        sequence = int.from_bytes(encoded[_HELPER_BYTES:PLACE_BYTES], "big")
        if sequence > _MAX_SEQUENCE:
            return None
        head, tag = encoded[PLACE_BYTES:-_DIGEST_BYTES], encoded[-_DIGEST_BYTES:]
        return cls(helper_id=encoded[:_HELPER_BYTES], sequence=sequence, head=head, tag=tag)

    def is_newer_than(self, other: "Receipt | None") -> bool:
        """Return whether to show this one instead: it is of the same keys and later, or of other keys."""
        return other is None or self.helper_id != other.helper_id or self.sequence > other.sequence


def find_receipt(metadata: Any) -> bytes | None:
    """Return the receipt in a call's metadata, if there is one."""
    for key, value in metadata or ():
        if key == METADATA_KEY and isinstance(value, bytes):
            return value
    return None

"""Detection of a ledger that was rolled back, and would charge and answer forgotten releases a second time.

The ledger's audit log is a chain: each commit adds an entry, and it contains every position that the ledger
ever had. Two witnesses remember positions. One is a file in the folder of the keys, written before an
answer leaves. The other is each ad server, which stores a receipt with a tag that only this helper can
compute, and shows it with its next call. If the ledger lacks a position that a witness shows, it is an older
copy, and the helper refuses every call from then on: docs/adr/0007-rollback.md.
"""

import hmac
import logging
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

from sqlalchemy import Engine

from helper.ledger.ledger import Ledger
from helper.ledger.records import Position
from helper.ledger.statements import LOG
from maskedlark.errors import InvalidSetting, JobReason, JobRefused
from maskedlark.rpc.receipts import Receipt
from maskedlark.runtime.database import reading
from maskedlark.runtime.durable_file import replacing

FILE_NAME: Final = "witness"

_LOG: Final = logging.getLogger(__name__)


class Witness:
    """What one helper's ledger was seen at. Safe to call from many threads."""

    def __init__(self, *, ledger: Ledger, folder: Path, key: bytes) -> None:
        """Read the file, if there is one.

        Args:
            ledger: The ledger.
            folder: The helper's data folder.
            key: 32 bytes of this helper's own, under which receipts are made.

        Raises:
            InvalidSetting: the file is damaged, or was written under other keys.
        """
        self._ledger = ledger
        self._file = folder / FILE_NAME
        self._key = key
        self._helper_id = sha256(b"maskedlark/v1 witness\0" + key).digest()[:16]
        self._lock = Lock()
        self._seen = self._read()

    def check(self, shown: bytes | None) -> None:
        """Refuse to act on a ledger that was rolled back.

        Called before every call, with the receipt that the caller shows.

        A receipt of another helper, or none, says nothing. One of this helper that the ledger does not know
        is kept, so that every later call, and every later process, refuses too.

        Raises:
            JobRefused(LEDGER_ROLLED_BACK)
        """
        self._ledger.begin_call()
        position = self._verify(shown)
        with self._lock:
            self._require(position)

    def receipt(self) -> bytes:
        """Return the ledger's position, for the caller to show next time.

        Called after a commit and before its answer leaves, so that the witness is never behind an answer.

        Raises:
            JobRefused(LEDGER_ROLLED_BACK): the ledger was rolled back since `check`, or since this call
                committed: a database can fail over while an answer is computed. The answer must not leave.
        """
        position, committed = self._ledger.position(), self._ledger.committed
        encoded = self._receipt(position).encode()
        with self._lock:
            # Mostly it is the position that was just read: then the ledger holds it.
            self._require(committed if committed != position else None)
            if self._seen is None or position.sequence > self._seen.sequence:
                # The file first: if the disk fails, the answer stays here, and the next one writes it again.
                self._write(encoded)
                self._seen = position
        return encoded

    def _require(self, position: Position | None) -> None:
        """Refuse if the ledger lacks a position, or the one at which it was seen; keep the newer as seen.

        Called with the lock.
        """
        known = dict.fromkeys((self._seen, position))  # mostly the same one
        lacking = [one for one in known if one is not None and not self._ledger.holds(one)]
        if not lacking:
            return
        # The newer: an old receipt must not make a copy good enough that still lacks what was seen.
        newest = max(lacking, key=lambda one: one.sequence)
        if newest == position:
            # In memory first: if the disk fails, this process refuses later calls all the same.
            self._seen = newest
            self._write(self._receipt(newest).encode())
        raise _refuse_rolled_back(newest)

    def _receipt(self, position: Position) -> Receipt:
        return Receipt(
            helper_id=self._helper_id, sequence=position.sequence, head=position.head, tag=self._tag(position)
        )

    def _tag(self, position: Position) -> bytes:
        return hmac.digest(
            self._key,
            b"maskedlark/v1 receipt\0" + position.sequence.to_bytes(8, "big") + position.head,
            "sha256",
        )

    def _verify(self, shown: bytes | None) -> Position | None:
        """Return the position on a receipt that this helper made."""
        receipt = Receipt.decode(shown) if shown is not None else None
        if receipt is None:
            return None
        position = Position(sequence=receipt.sequence, head=receipt.head)
        return position if hmac.compare_digest(self._tag(position), receipt.tag) else None

    def _read(self) -> Position | None:
        try:
            stored = self._file.read_bytes()
        except FileNotFoundError:
            return None
        position = self._verify(stored)
        if position is None:
            raise InvalidSetting(
                f"{self._file} is damaged or was written under other keys: keep it with the keys "
                "that wrote it"
            )
        return position

    def _write(self, encoded: bytes) -> None:
        """Replace the file as a whole, durably."""
        with replacing(self._file, self._file.with_name(FILE_NAME + ".unfinished")) as stream:
            stream.write(encoded)


def is_rolled_back(engine: Engine, folder: Path) -> bool:
    """Return whether a ledger lacks the position in a data folder's witness, for a warning.

    It only reads, and needs no keys: the witness is believed.
    """
    try:
        receipt = Receipt.decode((folder / FILE_NAME).read_bytes())
    except OSError:
        return False
    if receipt is None:
        return False
    with reading(engine) as connection:
        return LOG.head(connection, receipt.sequence) != receipt.head


def _refuse_rolled_back(forgotten: Position) -> JobRefused:
    """Build every caller's refusal after a rollback; the operator's log says more."""
    _LOG.error(
        "the ledger was rolled back: it does not contain position %d, at which it was seen",
        forgotten.sequence,
    )
    return JobRefused(
        JobReason.LEDGER_ROLLED_BACK,
        "this helper's ledger is older than its earlier answers: its operator must restore the "
        "newest one, or make new keys",
    )

"""The helpers' receipts.

A helper whose ledger was rolled back is shown what it has forgotten (docs/adr/0007-rollback.md).
"""

from threading import Lock
from typing import Final

from sqlalchemy import Engine, bindparam, func, select, update

from adserver.store.database import insert_or_ignore
from adserver.store.schema import helper_addresses, helper_receipts
from maskedlark.rpc.receipts import PLACE_BYTES, Receipt
from maskedlark.runtime.database import reading

# made once: each call to a helper runs them, and building one takes longer than running it
_NEWEST_AT: Final = (
    select(helper_receipts.c.receipt)
    .join(helper_addresses, helper_addresses.c.helper_id == helper_receipts.c.helper_id)
    .where(helper_addresses.c.address == bindparam("at"))
)
_OF_HELPER: Final = helper_receipts.c.helper_id == bindparam("of_helper")
_IS_OLDER: Final = func.substr(helper_receipts.c.receipt, 1, PLACE_BYTES) < bindparam("place")
_REPLACE: Final = update(helper_receipts).where(_OF_HELPER, _IS_OLDER).values(receipt=bindparam("newer"))


class ReceiptBook:
    """The newest receipt of each helper, wherever it answers.

    Safe to share between threads; processes share it by the database.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        """Keep receipts in a database, or for this process only."""
        self._engine = engine
        self._lock = Lock()
        self._newest: dict[str, Receipt] = {}

    def newest(self, address: str) -> Receipt | None:
        """Return the receipt to show to the helper at an address.

        The newest that any process has kept of it, from whatever address.

        A helper that moved is known by its first answer from the new address.
        """
        if self._engine is None:
            with self._lock:
                return self._newest.get(address)
        with reading(self._engine) as connection:
            stored = connection.execute(_NEWEST_AT, {"at": address}).scalar()
        newest = Receipt.decode(bytes(stored)) if stored is not None else None
        # Then `keep` of this process needs no transaction for what another process has kept.
        if newest is not None:
            self._remember(address, newest)
        return newest

    def keep(self, address: str, receipt: Receipt) -> None:
        """Remember a receipt if it is newer than the one that is kept of this helper.

        Remembers also which helper answers at the address.
        """
        with self._lock:
            newest = self._newest.get(address)
        is_known_there = newest is not None and newest.helper_id == receipt.helper_id
        if is_known_there and not receipt.is_newer_than(newest):
            return
        if self._engine is not None:
            self._store(self._engine, address, receipt, is_known_there=is_known_there)
        self._remember(address, receipt)

    def _remember(self, address: str, receipt: Receipt) -> None:
        """Keep what this process has seen at an address: what is not newer need not be looked for again."""
        with self._lock:
            if receipt.is_newer_than(self._newest.get(address)):
                self._newest[address] = receipt

    def _store(self, engine: Engine, address: str, receipt: Receipt, *, is_known_there: bool) -> None:
        """Keep it in the database, if it is newer than the one there."""
        with engine.begin() as connection:
            row = {"helper_id": receipt.helper_id, "receipt": receipt.encode()}
            if not is_known_there:  # rows are made first, so that there are some to lock
                connection.execute(insert_or_ignore(engine, helper_receipts, ["helper_id"]).values(row))
            encoded = row["receipt"]
            newer = {"of_helper": receipt.helper_id, "place": encoded[:PLACE_BYTES], "newer": encoded}
            connection.execute(_REPLACE, newer)
            if is_known_there:
                return
            there = {"address": address, "helper_id": receipt.helper_id}
            connection.execute(insert_or_ignore(engine, helper_addresses, ["address"]).values(there))
            connection.execute(
                update(helper_addresses).where(helper_addresses.c.address == address).values(there)
            )

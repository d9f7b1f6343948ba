"""The helpers' receipts.

A helper whose ledger was rolled back is shown what it has forgotten (docs/adr/0007-rollback.md).
"""

from threading import Lock
from typing import Final

from sqlalchemy import Engine, bindparam, select, update

from adserver.store.database import insert_or_ignore
from adserver.store.schema import helper_addresses, helper_receipts
from maskedlark.rpc.receipts import Receipt, decode_receipt, encode_receipt
from maskedlark.runtime.database import reading

# made once: each call to a helper runs them, and building one takes longer than running it
_NEWEST_AT: Final = (
    select(helper_receipts.c.receipt)
    .join(helper_addresses, helper_addresses.c.helper_id == helper_receipts.c.helper_id)
    .where(helper_addresses.c.address == bindparam("at"))
)
_OF_HELPER: Final = helper_receipts.c.helper_id == bindparam("of_helper")
_KEPT_OF: Final = select(helper_receipts.c.receipt).where(_OF_HELPER).with_for_update()
_REPLACE: Final = update(helper_receipts).where(_OF_HELPER).values(receipt=bindparam("newer"))


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
        """What to show to the helper at an address.

        The newest that any process has kept of it, from whatever address.

        A helper that moved is known by its first answer from the new address.
        """
        if self._engine is None:
            with self._lock:
                return self._newest.get(address)
        with reading(self._engine) as connection:
            stored = connection.execute(_NEWEST_AT, {"at": address}).scalar()
        return decode_receipt(bytes(stored)) if stored is not None else None

    def keep(self, address: str, receipt: Receipt) -> None:
        """Remember a receipt if it is newer than the one that is kept of this helper.

        Remembers also which helper answers at the address.
        """
        newest = self.newest(address)
        is_known_there = newest is not None and newest.helper_id == receipt.helper_id
        if is_known_there and not receipt.is_newer_than(newest):
            return
        if self._engine is None:
            with self._lock:
                if receipt.is_newer_than(self._newest.get(address)):
                    self._newest[address] = receipt
            return
        with self._engine.begin() as connection:
            row = {"helper_id": receipt.helper_id, "receipt": encode_receipt(receipt)}
            if not is_known_there:  # rows are made first, so that there are some to lock
                connection.execute(insert_or_ignore(self._engine, helper_receipts, ["helper_id"]).values(row))
            stored = connection.execute(_KEPT_OF, {"of_helper": receipt.helper_id}).scalar_one()
            if receipt.is_newer_than(decode_receipt(bytes(stored))):
                connection.execute(_REPLACE, {"of_helper": receipt.helper_id, "newer": row["receipt"]})
            if is_known_there:
                return
            there = {"address": address, "helper_id": receipt.helper_id}
            connection.execute(insert_or_ignore(self._engine, helper_addresses, ["address"]).values(there))
            connection.execute(
                update(helper_addresses).where(helper_addresses.c.address == address).values(there)
            )

"""The helpers' receipts.

A helper whose ledger was rolled back is shown what it has forgotten (docs/adr/0007-rollback.md).
"""

from threading import Lock

from sqlalchemy import Engine, select, update

from adserver.store.database import insert_or_ignore
from adserver.store.schema import helper_addresses, helper_receipts
from maskedlark.rpc.receipts import Receipt, decode_receipt, encode_receipt
from maskedlark.runtime.database import reading


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
        asked = select(helper_receipts.c.receipt).join(
            helper_addresses, helper_addresses.c.helper_id == helper_receipts.c.helper_id
        )
        with reading(self._engine) as connection:
            stored = connection.execute(asked.where(helper_addresses.c.address == address)).scalar()
        return decode_receipt(bytes(stored)) if stored is not None else None

    def keep(self, address: str, receipt: Receipt) -> None:
        """Remember a receipt if it is newer than the one that is kept of this helper.

        Remembers also which helper answers at the address.
        """
        newest = self.newest(address)
        if newest is not None and newest.helper_id == receipt.helper_id and not receipt.is_newer_than(newest):
            return
        if self._engine is None:
            with self._lock:
                if receipt.is_newer_than(self._newest.get(address)):
                    self._newest[address] = receipt
            return
        with self._engine.begin() as connection:  # rows are made first, so that there are some to lock
            of_helper = helper_receipts.c.helper_id == receipt.helper_id
            row = {"helper_id": receipt.helper_id, "receipt": encode_receipt(receipt)}
            connection.execute(insert_or_ignore(self._engine, helper_receipts, ["helper_id"]).values(row))
            stored = connection.execute(
                select(helper_receipts.c.receipt).where(of_helper).with_for_update()
            ).scalar_one()
            if receipt.is_newer_than(decode_receipt(bytes(stored))):
                connection.execute(update(helper_receipts).where(of_helper).values(row))
            there = {"address": address, "helper_id": receipt.helper_id}
            connection.execute(insert_or_ignore(self._engine, helper_addresses, ["address"]).values(there))
            connection.execute(
                update(helper_addresses).where(helper_addresses.c.address == address).values(there)
            )

"""The helpers' receipts.

A helper whose ledger was rolled back is shown what it has forgotten (docs/adr/0007-rollback.md).
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple

import grpc
from sqlalchemy import Column, Engine, LargeBinary, String, Table, select, update

from adserver.store.database import insert_or_ignore, metadata
from maskedlark.rpc.receipts import METADATA_KEY, Receipt, decode_receipt, encode_receipt, receipt_in
from maskedlark.runtime.database import reading

helper_receipts: Final = Table(
    "helper_receipts",
    metadata,
    Column("helper_id", LargeBinary(16), primary_key=True),
    Column("receipt", LargeBinary, nullable=False),
)
helper_addresses: Final = Table(
    "helper_addresses",
    metadata,
    Column("address", String(300), primary_key=True),
    Column("helper_id", LargeBinary(16), nullable=False),  # who answered there last
)


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
        """Remember a receipt, if it is newer than the one that is kept of this helper, and who answers at the address."""
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


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class ReceiptExchange(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # grpc-stubs make them generic, grpc does not
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Shows a helper its newest receipt with each call, and keeps the one that comes with the answer."""

    def __init__(self, book: ReceiptBook, address: str) -> None:
        self._book = book
        self._address = address

    def _intercept(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        newest = self._book.newest(self._address)
        shown = () if newest is None else ((METADATA_KEY, encode_receipt(newest)),)
        sent = (*(details.metadata or ()), *shown)
        call = continuation(
            _CallDetails(
                details.method,
                details.timeout,
                sent,
                details.credentials,
                details.wait_for_ready,
                details.compression,
            ),
            request,
        )
        call.add_done_callback(self._keep)
        return call

    def _keep(self, call: Any) -> None:
        given = receipt_in(call.trailing_metadata())
        receipt = decode_receipt(given) if given is not None else None
        if receipt is not None:
            self._book.keep(self._address, receipt)

    intercept_unary_unary = _intercept  # type: ignore[assignment]  # one body for all shapes
    intercept_stream_unary = _intercept  # type: ignore[assignment]
    intercept_stream_stream = _intercept  # type: ignore[assignment]

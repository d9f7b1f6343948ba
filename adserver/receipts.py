"""The helpers' receipts: a helper whose ledger was rolled back is shown what it has forgotten (docs/adr/0007-rollback.md)."""

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple

import grpc
from sqlalchemy import Column, Engine, LargeBinary, String, Table, select, update

from adserver.database import insert_or_ignore, metadata
from maskedlark.rpc.receipts import METADATA_KEY, Receipt, decode_receipt, encode_receipt, receipt_in
from maskedlark.storage import reading

helper_receipts: Final = Table(
    "helper_receipts",
    metadata,
    Column("address", String(300), primary_key=True),
    Column("receipt", LargeBinary, nullable=False),
)


class ReceiptBook:
    """The newest receipt of each helper, by address. Safe to share between threads; processes share it by the database."""

    def __init__(self, engine: Engine | None = None) -> None:
        """Keep receipts in a database, or for this process only."""
        self._engine = engine
        self._lock = Lock()
        self._newest: dict[str, Receipt] = {}

    def newest(self, address: str) -> Receipt | None:
        """What to show to a helper."""
        with self._lock:
            if address not in self._newest and (stored := self._stored(address)) is not None:
                self._newest[address] = stored
            return self._newest.get(address)

    def keep(self, address: str, receipt: Receipt) -> None:
        """Remember a receipt, if it is newer than the one that is kept."""
        if not receipt.is_newer_than(self.newest(address)):
            return
        with self._lock:
            self._newest[address] = receipt
            if self._engine is None:
                return
            row = {"address": address, "receipt": encode_receipt(receipt)}
            is_its = helper_receipts.c.address == address
            with self._engine.begin() as connection:  # the row is made first, so that there is one to lock
                connection.execute(insert_or_ignore(self._engine, helper_receipts, ["address"]).values(row))
                stored = connection.execute(select(helper_receipts.c.receipt).where(is_its).with_for_update()).scalar_one()
                if receipt.is_newer_than(decode_receipt(bytes(stored))):
                    connection.execute(update(helper_receipts).where(is_its).values(row))

    def _stored(self, address: str) -> Receipt | None:
        if self._engine is None:
            return None
        with reading(self._engine) as connection:
            stored = connection.execute(select(helper_receipts.c.receipt).where(helper_receipts.c.address == address)).scalar()
        return decode_receipt(bytes(stored)) if stored is not None else None


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
            _CallDetails(details.method, details.timeout, sent, details.credentials, details.wait_for_ready, details.compression), request
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

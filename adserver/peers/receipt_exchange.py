"""Each call shows a helper its newest receipt, and keeps the one that comes with the answer."""

from collections.abc import Callable
from typing import Any

import grpc

from adserver.store.receipts import ReceiptBook
from maskedlark.rpc.call_details import with_metadata
from maskedlark.rpc.receipts import METADATA_KEY, Receipt, find_receipt


class ReceiptExchange(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # grpc-stubs make them generic, grpc does not
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Shows a helper its newest receipt with each call, and keeps the one that comes with the answer."""

    def __init__(self, book: ReceiptBook, address: str) -> None:
        self._book = book
        self._address = address

    def _intercept(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        newest = self._book.newest(self._address)
        # The helper compares it with its ledger: one that was restored from a backup knows no such receipt
        shown = () if newest is None else ((METADATA_KEY, newest.encode()),)
        call = continuation(with_metadata(details, shown), request)
        # A receipt comes with the trailing metadata, which are there only when the call has ended
        call.add_done_callback(self._keep)
        return call

    def _keep(self, call: Any) -> None:
        given = find_receipt(call.trailing_metadata())
        receipt = Receipt.decode(given) if given is not None else None
        if receipt is not None:
            self._book.keep(self._address, receipt)

    intercept_unary_unary = _intercept  # type: ignore[assignment]  # one body for all shapes
    intercept_unary_stream = _intercept  # type: ignore[assignment]
    intercept_stream_unary = _intercept  # type: ignore[assignment]
    intercept_stream_stream = _intercept  # type: ignore[assignment]

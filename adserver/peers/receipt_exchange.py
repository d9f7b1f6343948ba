"""Each call shows a helper its newest receipt, and keeps the one that comes with the answer."""

from typing import Any

from adserver.store.receipts import ReceiptBook
from maskedlark.rpc.call_details import CallInterceptor, Continue, with_metadata
from maskedlark.rpc.receipts import METADATA_KEY, Receipt, find_receipt


class ReceiptExchange(CallInterceptor):
    """Shows a helper its newest receipt with each call, and keeps the one that comes with the answer."""

    def __init__(self, book: ReceiptBook, address: str) -> None:
        self._book = book
        self._address = address

    def intercept(self, continuation: Continue, details: Any, request: Any) -> Any:
        """Make the call with the newest receipt in its metadata."""
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

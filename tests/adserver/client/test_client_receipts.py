"""`Client`, and so `aggregate` and `evaluate`, show a helper the receipts that any process has kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from adserver.client import Client
from adserver.store.database import create_tables, default_url
from adserver.store.receipts import ReceiptBook
from maskedlark.rpc.receipts import METADATA_KEY, Receipt, find_receipt
from maskedlark.rpc.transport import make_server
from maskedlark.runtime.database import open_database
from protos import helper_pb2_grpc


def receipt(sequence: int) -> Receipt:
    return Receipt(helper_id=b"h" * 16, sequence=sequence, head=bytes(32), tag=bytes(32))


@dataclass
class Witness(helper_pb2_grpc.HelperServicer):
    """Answers status badly, but with a receipt, and remembers what it was shown."""

    given: Receipt
    shown: list[bytes | None] = field(default_factory=list)

    def GetStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 # gRPC's name
        self.shown.append(find_receipt(context.invocation_metadata()))
        context.set_trailing_metadata(((METADATA_KEY, self.given.encode()),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "that is all")


@pytest.fixture
def witness() -> Iterator[tuple[Witness, str]]:
    servicer = Witness(given=receipt(7))
    server, port = make_server("127.0.0.1:0", None, threads=2)
    helper_pb2_grpc.add_HelperServicer_to_server(servicer, server)
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_receipt_survives_into_the_next_client(tmp_path: Path, witness: tuple[Witness, str]) -> None:
    servicer, address = witness
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    ReceiptBook(engine).keep(address, receipt(6))  # as `adserver serve` or a command keeps it
    for _ in range(2):
        with Client(data=tmp_path, helpers=(address, address), insecure=True) as client:
            assert [one.is_well for one in client.helpers()] == [False, False]
    # Each client looks at both
    assert servicer.shown == [receipt(6).encode(), *[receipt(7).encode()] * 3]
    assert ReceiptBook(engine).newest(address) == receipt(7)
    engine.dispose()

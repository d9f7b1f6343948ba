"""The helpers' receipts in the database, SQLite or PostgreSQL.

Of many that come at the same time to many processes, the newest stays.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest
from sqlalchemy import Engine

from adserver.store.database import create_tables
from adserver.store.receipts import ReceiptBook
from maskedlark.rpc.receipts import Receipt
from maskedlark.runtime.database import open_database

ADDRESS = "north:1"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    opened = open_database(database_url)
    create_tables(opened)
    yield opened
    opened.dispose()


def receipt(sequence: int, helper_id: bytes = b"h" * 16) -> Receipt:
    return Receipt(helper_id=helper_id, sequence=sequence, head=sequence.to_bytes(32, "big"), tag=b"t" * 32)


@pytest.mark.parametrize("seed", range(5))
def test_of_receipts_that_come_to_several_processes_at_once_the_newest_stays(
    engine: Engine, seed: int
) -> None:
    workers = 4
    together, rng = Barrier(workers), Random(seed)

    def keep(sequences: list[int]) -> None:
        book = ReceiptBook(engine)
        together.wait()
        for sequence in sequences:
            book.keep(ADDRESS, receipt(sequence))

    numbers = rng.sample(range(1, 41), 40)
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(keep, numbers[worker::workers]) for worker in range(workers)]:
            done.result()
    assert ReceiptBook(engine).newest(ADDRESS) == receipt(40)


def test_each_helper_has_its_own(engine: Engine) -> None:
    book = ReceiptBook(engine)
    book.keep("north:1", receipt(1))
    book.keep("south:1", receipt(2, b"s" * 16))
    again = ReceiptBook(engine)
    assert (again.newest("north:1"), again.newest("south:1"), again.newest("west:1")) == (
        receipt(1),
        receipt(2, b"s" * 16),
        None,
    )


def test_a_process_shows_what_another_one_was_given(engine: Engine) -> None:
    first, second = ReceiptBook(engine), ReceiptBook(engine)
    first.keep(ADDRESS, receipt(1))
    assert second.newest(ADDRESS) == receipt(1)
    first.keep(ADDRESS, receipt(2))
    assert second.newest(ADDRESS) == receipt(2)


def test_a_helper_that_moved_is_shown_its_newest_receipt_once_it_has_answered_from_there(
    engine: Engine,
) -> None:
    book = ReceiptBook(engine)
    book.keep("old:1", receipt(7))
    book.keep("new:1", receipt(3))  # restored from a backup, on another machine
    assert book.newest("new:1") == receipt(7)


def test_another_helper_at_an_address_has_its_own(engine: Engine) -> None:
    book = ReceiptBook(engine)
    book.keep(ADDRESS, receipt(7))
    book.keep(ADDRESS, receipt(1, b"n" * 16))
    assert book.newest(ADDRESS) == receipt(1, b"n" * 16)


def test_without_a_database_receipts_are_kept_for_the_process() -> None:
    book = ReceiptBook()
    for sequence in (1, 3, 2):
        book.keep(ADDRESS, receipt(sequence))
    assert book.newest(ADDRESS) == receipt(3)

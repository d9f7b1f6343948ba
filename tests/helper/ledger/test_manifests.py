from collections.abc import Iterator
from dataclasses import replace

import pytest

from helper.ledger.ledger import Ledger
from helper.ledger.records import Manifest, SealedObject, SignedTask
from maskedlark.errors import JobReason
from maskedlark.runtime.database import open_database
from tests.refusals import refused

TASK = b"t" * 32
DATASET = b"d" * 32
OBJECT = SealedObject(
    number=0, holds_ranks=False, name="f/0", digest=b"s" * 32, num_bytes=1 << 25, records=1 << 16
)
MANIFEST: Manifest = tuple(
    replace(OBJECT, number=number, holds_ranks=holds_ranks, name=f"f/{number}{holds_ranks:d}")
    for number in range(12)
    for holds_ranks in (False, True)
)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    opened = Ledger(open_database(database_url))
    opened.add_task(
        TASK, SignedTask(encoded=b"{}", origin="https://ads.example", role=0, signature=b"x" * 64)
    )
    yield opened
    opened.close()


def test_a_manifest_is_committed_with_its_dataset_and_read_in_order(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, [b"r" * 16], tuple(reversed(MANIFEST)))
    ledger.add_dataset(b"e" * 32, TASK, [b"q" * 16])
    assert ledger.manifests.of(DATASET) == MANIFEST
    assert ledger.manifests.of(b"e" * 32) == ()
    assert ledger.manifests.dataset_ids() == [DATASET]


def test_of_a_dataset_that_is_refused_no_object_is_named(ledger: Ledger) -> None:
    ledger.add_dataset(b"e" * 32, TASK, [b"r" * 16])
    with refused(JobReason.REPORT_ALREADY_USED):
        ledger.add_dataset(DATASET, TASK, [b"r" * 16], MANIFEST)
    assert ledger.manifests.select_named([one.name for one in MANIFEST]) == set()


def test_names_are_looked_up_in_any_number(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, [b"r" * 16], MANIFEST)
    others = [f"g/{number}" for number in range(1_200)]
    assert ledger.manifests.select_named([*others, "f/30", "f/111"]) == {"f/30", "f/111"}
    assert ledger.manifests.select_named([]) == set()


def test_a_manifest_that_is_dropped_leaves_the_dataset_and_its_reports(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, [b"r" * 16], MANIFEST)
    before = ledger.position()
    assert ledger.manifests.drop(DATASET)
    assert not ledger.manifests.drop(DATASET)
    assert ledger.manifests.of(DATASET) == ()
    assert ledger.find_used(TASK, [b"r" * 16]) == {b"r" * 16}
    assert ledger.dataset(TASK, DATASET) is not None
    assert ledger.position() == before
    Ledger(ledger.engine)  # which looks whether everything fits together

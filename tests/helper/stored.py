"""Datasets in a vault, which a ledger names, without the reports and the task that they are of."""

from pathlib import Path

import numpy as np
from sqlalchemy import delete, insert, update

from helper.datasets.frames import KeyFor, Ranks
from helper.datasets.segment_writer import SegmentWriter
from helper.datasets.segments import NOT_CHOSEN, SegmentSlice
from helper.datasets.vault import Vault
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.manifests import add_manifest
from helper.ledger.records import Manifest, SignedTask
from helper.ledger.schema import DATASETS, SEGMENTS
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.runtime.database import open_database

_TASK = bytes(32)


def vault_in(folder: Path, key_for: KeyFor) -> Vault:
    """A vault in a folder, and its ledger beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(open_database(sqlite_url(folder / "ledger.sqlite3")))
    return Vault(folder / "datasets", ledger, key_for)


def files_of(folder: Path) -> list[Path]:
    """The files of a vault of `vault_in`, or of a helper."""
    return sorted((folder / "datasets").iterdir())


def commit(vault: Vault, writer: SegmentWriter, dataset_id: bytes, ranks: Ranks) -> None:
    """Make what was written a dataset, in place of an earlier one of its id."""
    name_objects(vault, dataset_id, vault.commit(writer, dataset_id, ranks), int((ranks != NOT_CHOSEN).sum()))
    writer.commit(dataset_id)


def name_objects(vault: Vault, dataset_id: bytes, manifest: Manifest, size: int) -> None:
    """Let a vault's ledger name these objects as a dataset of so many records."""
    ledger, is_it = vault._ledger, DATASETS.c.dataset_id == dataset_id
    if ledger.dataset_of_any_task(dataset_id) is None:
        task = SignedTask(encoded=b"", origin="https://ads.example", role=0, signature=bytes(64))
        ledger.add_task(_TASK, task)
        with ledger.engine.begin() as connection:
            row = {"dataset_id": dataset_id, "task_id": _TASK, "size": size}
            connection.execute(insert(DATASETS).values(row))
    with ledger.engine.begin() as connection:
        connection.execute(update(DATASETS).where(is_it).values(size=size))
        connection.execute(delete(SEGMENTS).where(SEGMENTS.c.dataset_id == dataset_id))
        add_manifest(connection, dataset_id, manifest)


def write(vault: Vault, dataset: OpenedDataset) -> None:
    """Store a dataset whose records came in canonical order."""
    rows = SegmentSlice.whole(dataset).rows
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    commit(vault, writer, dataset.dataset_id, np.arange(len(rows), dtype=np.uint32))
    writer.remove()

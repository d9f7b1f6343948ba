"""Datasets in a vault, as a helper puts them there, and as helpers of earlier versions did."""

from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.datasets import whole_file
from helper.datasets.frames import KeyFor
from helper.datasets.segments import SegmentRows, whole
from helper.datasets.vault import Vault
from maskedlark.randomness import system_randomness
from maskedlark.reports.dataset import OpenedDataset


def write(vault: Vault, dataset: OpenedDataset) -> None:
    """Store a dataset whose records came in canonical order."""
    rows = whole(dataset).rows
    spool = vault.begin(rows.shape, "ads.example")
    vault.add(spool, rows)
    vault.commit(spool, dataset.dataset_id, np.arange(len(rows), dtype=np.uint32))
    spool.remove()


def write_as_before(folder: Path, key_for: KeyFor, dataset: OpenedDataset) -> Path:
    """Store a dataset in the layout of version 2, which a helper reads still."""
    shape = SegmentRows(report_ids=dataset.report_ids, shares=dataset.shares).shape
    numbers = [len(dataset), shape.features, shape.candidates, shape.keys, shape.columns]
    salt = system_randomness(32)
    header = b"MLDS\x02\0\0\0" + salt + np.array(numbers, "<u8").tobytes()
    cipher = ChaCha20Poly1305(key_for(dataset.dataset_id + salt))
    path = folder / f"{dataset.dataset_id.hex()}.sealed"
    with path.open("wb") as stream:
        stream.write(header)
        for index, frame in enumerate(whole_file._frames(dataset)):
            stream.write(cipher.encrypt(index.to_bytes(12, "little"), bytes(frame), header))
    return path

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helper.datasets import segment_writer as spool_module
from helper.datasets import segments, whole_file
from helper.datasets.segments import NOT_CHOSEN, RowShape, whole
from helper.datasets.vault import Vault, VaultDamaged
from helper.trust.keys import HelperKeys
from maskedlark.errors import HelperUnavailable
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.runtime import durable_file
from tests.helper.stored import write, write_as_before

KEYS = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)
ID = b"d" * 32
HEADER, TAG = 88, 16
PATTERN = b"\xde\xad\xbe\xef" * 8


def dataset(records: int, features: int = 32, candidates: int = 2, dataset_id: bytes = ID) -> OpenedDataset:
    draw = seeded(records)
    return OpenedDataset(
        dataset_id=dataset_id,
        report_ids=np.frombuffer(draw(16 * records), np.uint8).reshape(records, 16),
        shares=InputShares(
            features=np.frombuffer(draw(features * records), np.uint8).reshape(records, features),
            labels=np.frombuffer(draw(4 * candidates * records), np.uint32).reshape(records, candidates),
            mask_shares=np.frombuffer(draw(8 * candidates * records), np.uint64).reshape(records, candidates),
        ),
    )


def assert_equal(first: OpenedDataset, second: OpenedDataset) -> None:
    assert first.dataset_id == second.dataset_id
    np.testing.assert_array_equal(first.report_ids, second.report_ids)
    for name in ("features", "labels", "mask_shares"):
        ours, theirs = getattr(first.shares, name), getattr(second.shares, name)
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path, KEYS.vault_key)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("segment", [1, 2, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_a_dataset_reads_back_whatever_the_segments_and_chunks(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, segment: int, chunk: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", segment)
    written = dataset(25)
    rows, came = whole(written).rows, np.random.default_rng(3).permutation(25)
    spool = vault.begin(rows.shape, "ads.example")
    for start in range(0, 25, chunk):
        vault.add(spool, rows.rows(came[start : start + chunk]))
        assert spool.waiting < segment
    vault.commit(spool, ID, came.astype(np.uint32))
    assert_equal(vault.read(ID), written)
    pieces = list(vault.pieces(ID))
    assert len(pieces) == -(-25 // segment)
    for piece in pieces:
        assert (np.diff(piece.ranks) > 0).all()
        np.testing.assert_array_equal(piece.shares.features, written.shares.features[piece.ranks])
        np.testing.assert_array_equal(piece.shares.mask_shares, written.shares.mask_shares[piece.ranks])
    narrow = vault.read_without_features(ID).shares
    assert narrow.features.shape == (25, 0)
    np.testing.assert_array_equal(narrow.labels, written.shares.labels)


@pytest.mark.parametrize("features", [1, 300])
def test_features_that_nobody_asks_for_are_not_read(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    written = dataset(10, features=features)
    write(vault, written)
    path = only_file(tmp_path)
    stored, start = path.read_bytes(), HEADER + 4 * 16 + TAG
    end = start + 4 * features + TAG
    path.write_bytes(stored[:start] + bytes(end - start) + stored[end:])
    narrow = vault.read_without_features(ID)
    assert narrow.shares.features.shape == (10, 0)
    np.testing.assert_array_equal(narrow.report_ids, written.report_ids)
    np.testing.assert_array_equal(narrow.shares.labels, written.shares.labels)
    np.testing.assert_array_equal(narrow.shares.mask_shares, written.shares.mask_shares)
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    path.write_bytes(stored[:end] + bytes([stored[end] ^ 1]) + stored[end + 1 :])
    with pytest.raises(VaultDamaged):
        vault.read_without_features(ID)


def test_records_that_were_not_chosen_are_in_no_piece(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows = whole(dataset(12)).rows
    spool = vault.begin(rows.shape, "ads.example")
    vault.add(spool, rows)
    ranks = np.full(12, NOT_CHOSEN, np.uint32)
    ranks[[9, 1]] = [0, 1]  # and nothing of the second segment
    vault.commit(spool, ID, ranks)
    read = vault.read(ID)
    np.testing.assert_array_equal(read.report_ids, rows.report_ids[[9, 1]])
    assert [piece.ranks.tolist() for piece in vault.pieces(ID)] == [[1], [0]]


def test_a_dataset_that_is_withdrawn_may_be_stored_as_another_one(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows, other = whole(dataset(6)).rows, b"e" * 32
    spool = vault.begin(rows.shape, "ads.example")
    vault.add(spool, rows)
    vault.commit(spool, ID, np.arange(6, dtype=np.uint32))
    vault.withdraw(spool, ID)
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    vault.commit(spool, other, np.array([0, 1, NOT_CHOSEN, 2, 3, 4], np.uint32))
    np.testing.assert_array_equal(vault.read(other).report_ids, rows.report_ids[[0, 1, 3, 4, 5]])
    spool.remove()
    assert len(vault.read(other)) == 5
    only_file(tmp_path)


def test_a_spool_that_is_removed_leaves_nothing(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows = whole(dataset(6)).rows
    spool = vault.begin(rows.shape, "ads.example")
    assert list(tmp_path.iterdir()) == []
    vault.add(spool, rows)
    only_file(tmp_path)
    spool.remove()
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_segment_of_wide_records_holds_fewer_of_them() -> None:
    assert RowShape(features=30, candidates=2, keys=0, columns=0).segment_records == 65_536
    wide = RowShape(features=1 << 20, candidates=2, keys=0, columns=0)
    assert wide.segment_records * (1 << 20) < segments.SEGMENT_BYTES
    assert RowShape(features=1 << 30, candidates=2, keys=0, columns=0).segment_records == 1


def test_a_measurement_is_stored_too(vault: Vault) -> None:
    plain = dataset(5)
    measured = MeasuredShares(
        keys=np.arange(10, dtype=np.uint32).reshape(5, 2),
        value_shares=np.arange(15, dtype=np.uint64).reshape(5, 3),
    )
    write(vault, replace(plain, shares=replace(plain.shares, measured=measured)))
    read = vault.read(ID).shares.measured
    assert read is not None
    np.testing.assert_array_equal(read.keys, measured.keys)
    np.testing.assert_array_equal(read.value_shares, measured.value_shares)


@pytest.mark.parametrize("frame", [1, 7, 64, 8 << 20])
def test_a_file_of_an_earlier_version_is_read(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: int
) -> None:
    monkeypatch.setattr(whole_file, "FRAME_BYTES", frame)
    written = dataset(5)
    write_as_before(tmp_path, KEYS.vault_key, written)
    assert_equal(vault.read(ID), written)
    (piece,) = vault.pieces(ID)
    assert piece.ranks.tolist() == list(range(5))


def test_an_earlier_file_of_a_measurement_is_read(vault: Vault, tmp_path: Path) -> None:
    plain = dataset(5)
    measured = MeasuredShares(keys=np.ones((5, 1), np.uint32), value_shares=np.full((5, 2), 7, np.uint64))
    write_as_before(tmp_path, KEYS.vault_key, replace(plain, shares=replace(plain.shares, measured=measured)))
    read = vault.read(ID).shares.measured
    assert read is not None
    assert read.value_shares.tolist() == [[7, 7]] * 5


@given(records=st.integers(1, 40), features=st.integers(1, 50), candidates=st.integers(2, 5))
@hypothesis_settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_dataset_of_any_shape_reads_back(
    vault: Vault, records: int, features: int, candidates: int
) -> None:
    written = dataset(records, features, candidates)
    write(vault, written)
    assert_equal(vault.read(ID), written)


def test_writing_again_replaces_the_file_and_uses_another_key(vault: Vault, tmp_path: Path) -> None:
    write(vault, dataset(5))
    before = only_file(tmp_path).read_bytes()
    write(vault, dataset(5))
    after = only_file(tmp_path).read_bytes()
    assert len(before) == len(after)
    assert before[-100:] != after[-100:]


def test_what_a_crash_left_unfinished_is_removed_at_the_start_and_the_rest_stays(
    vault: Vault, tmp_path: Path
) -> None:
    write(vault, dataset(5))
    whole = only_file(tmp_path)
    (tmp_path / f"{bytes(32).hex()}.unfinished").write_bytes(b"half")
    assert_equal(Vault(tmp_path, KEYS.vault_key).read(ID), dataset(5))
    assert only_file(tmp_path) == whole


def test_nothing_of_a_dataset_is_on_the_disk_in_clear(vault: Vault, tmp_path: Path) -> None:
    one = dataset(3)
    planted = np.tile(np.frombuffer(PATTERN, np.uint8), (3, 1))
    secret = OpenedDataset(
        dataset_id=ID,
        report_ids=one.report_ids,
        shares=InputShares(features=planted, labels=one.shares.labels, mask_shares=one.shares.mask_shares),
    )
    write(vault, secret)
    stored = only_file(tmp_path).read_bytes()
    for clear in (
        PATTERN[:8],
        one.report_ids[0].tobytes(),
        one.shares.mask_shares[0].tobytes(),
        one.shares.labels[0].tobytes(),
    ):
        assert clear not in stored
    assert only_file(tmp_path).stat().st_mode & 0o077 == 0


Damage = Callable[[bytes], bytes]
SEGMENT = 4
"""Records in a segment of the files that are damaged here: each has two."""
FRAMES = SEGMENT * 72 + 4 * 16
"""Bytes of a segment: 16, 32, 8 and 16 a record, and four tags."""


@pytest.mark.parametrize("old", [False, True], ids=["segments", "whole"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda stored: stored[:-1], id="cut"),
        pytest.param(lambda stored: stored + b"\0", id="extended"),
        pytest.param(lambda stored: b"", id="emptied"),
        pytest.param(lambda stored: stored[:40], id="cut in the header"),
        pytest.param(lambda stored: b"X" + stored[1:], id="another magic"),
        pytest.param(lambda stored: stored[:4] + b"\x01" + stored[5:], id="another version"),
        pytest.param(lambda stored: stored[:10] + bytes([stored[10] ^ 1]) + stored[11:], id="another salt"),
        pytest.param(lambda stored: stored[:40] + bytes([4]) + stored[41:], id="another shape"),
        pytest.param(lambda stored: stored[:40] + b"\xff" * 24 + stored[64:], id="a giant shape"),
        pytest.param(lambda stored: stored[:40] + bytes(24) + stored[64:], id="no shape"),
        pytest.param(lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]), id="another last bit"),
        pytest.param(lambda stored: stored[:-16] + bytes(16), id="no records"),
        pytest.param(lambda stored: stored[:200] + bytes([stored[200] ^ 1]) + stored[201:], id="a bit"),
    ],
)
def test_a_damaged_file_is_noticed(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, old: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    if old:
        write_as_before(tmp_path, KEYS.vault_key, dataset(2 * SEGMENT))
    else:
        write(vault, dataset(2 * SEGMENT))
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    with pytest.raises(VaultDamaged):
        list(vault.pieces(ID))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            lambda stored, _: (
                stored[:HEADER]
                + stored[HEADER + FRAMES : HEADER + 2 * FRAMES]
                + stored[HEADER : HEADER + FRAMES]
                + stored[HEADER + 2 * FRAMES :]
            ),
            id="segments swapped",
        ),
        pytest.param(
            lambda stored, _: (
                stored[:HEADER] + 2 * stored[HEADER : HEADER + FRAMES] + stored[HEADER + 2 * FRAMES :]
            ),
            id="a segment twice",
        ),
        pytest.param(
            lambda stored, other: other[: HEADER + FRAMES] + stored[HEADER + FRAMES :],
            id="a segment of another attempt",
        ),
        pytest.param(
            lambda stored, other: stored[: HEADER + 2 * FRAMES] + other[HEADER + 2 * FRAMES :],
            id="the ranks of another attempt",
        ),
        pytest.param(
            lambda stored, _: (
                stored[: HEADER + FRAMES]
                + stored[HEADER + 2 * FRAMES : HEADER + 2 * FRAMES + 4 * SEGMENT + 16]
                + np.array([SEGMENT, SEGMENT], "<u8").tobytes()
            ),
            id="the first segment alone",
        ),
    ],
)
def test_segments_that_are_not_where_they_were_are_noticed(
    vault: Vault,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes, bytes], bytes],
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    files = []
    for _ in range(2):
        write(vault, dataset(2 * SEGMENT))
        files.append(only_file(tmp_path).read_bytes())
    assert len(files[0]) == HEADER + 2 * FRAMES + 2 * (4 * SEGMENT + 16) + 16
    damaged = damage(files[1], files[0])
    assert damaged not in files
    only_file(tmp_path).write_bytes(damaged)
    with pytest.raises(VaultDamaged):
        vault.read(ID)


def test_a_file_under_another_datasets_name_is_noticed(vault: Vault, tmp_path: Path) -> None:
    write(vault, dataset(5))
    other = b"e" * 32
    only_file(tmp_path).rename(tmp_path / f"{other.hex()}.sealed")
    with pytest.raises(VaultDamaged):
        vault.read(other)


def test_another_helpers_storage_key_opens_nothing(vault: Vault, tmp_path: Path) -> None:
    write(vault, dataset(5))
    other = HelperKeys.generate(name="south", suite=HpkeSuite.X25519_AES128GCM)
    with pytest.raises(VaultDamaged):
        Vault(tmp_path, other.vault_key).read(ID)


def test_a_missing_file_is_noticed(vault: Vault) -> None:
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    with pytest.raises(VaultDamaged):
        vault.num_bytes(ID)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_at_the_moment_is_not_lost(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write(vault, dataset(5))

    def broken(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as during:
        during.setattr(Path, "open", broken)
        with pytest.raises(HelperUnavailable, match=os.strerror(number)):
            vault.read(ID)
        with pytest.raises(HelperUnavailable):
            list(vault.pieces(ID))
    assert_equal(vault.read(ID), dataset(5))


def test_a_file_of_another_layout_is_damaged_though_its_seals_hold(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as during:
        during.setattr(spool_module, "MAGIC", b"MLDS\x7f\0\0\0")
        write(vault, dataset(5))
        assert_equal(vault.read(ID), dataset(5))
    with pytest.raises(VaultDamaged):
        vault.read(ID)


def test_a_store_that_fails_once_the_file_has_its_name_may_be_repeated(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows, ranks = whole(dataset(10)).rows, np.arange(10, dtype=np.uint32)
    spool = vault.begin(rows.shape, "ads.example")
    vault.add(spool, rows)
    put = durable_file.put_in_place

    def named_but_not_durable(*given: Any) -> None:
        put(*given)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as during:
        during.setattr(spool_module, "put_in_place", named_but_not_durable)
        for _ in range(2):
            with pytest.raises(HelperUnavailable):
                vault.commit(spool, ID, ranks)
            assert not only_file(tmp_path).name.endswith(".sealed")
    vault.commit(spool, ID, ranks)
    assert_equal(vault.read(ID), dataset(10))
    assert only_file(tmp_path).name.endswith(".sealed")

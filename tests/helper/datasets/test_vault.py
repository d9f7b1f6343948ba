import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import delete

from helper.datasets import sealed_segments, segments
from helper.datasets import vault as vault_module
from helper.datasets.segments import NOT_CHOSEN, RowShape, SegmentSlice, put_together
from helper.datasets.vault import Vault, VaultDamaged
from helper.ledger.manifests import add_manifest
from helper.ledger.schema import SEGMENTS
from helper.trust.keys import HelperKeys
from maskedlark.errors import HelperUnavailable
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.runtime import durable_file
from maskedlark.runtime.objects import ObjectLost
from tests.helper.stored import commit, files_of, vault_in, write

KEYS = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)
ID = b"d" * 32
HEADER, TAG = 88, 16
"""Bytes before the frames of an object, and behind each frame."""
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
    return vault_in(tmp_path, KEYS.vault_key)


def records_and_ranks(vault: Vault, number: int = 0) -> tuple[Path, Path]:
    """The two files of a segment."""
    first, second = (
        vault._disk.path(one.name) for one in vault._ledger.manifests.of(ID) if one.number == number
    )
    return first, second


@pytest.mark.parametrize("segment", [1, 2, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_a_dataset_reads_back_whatever_the_segments_and_chunks(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, segment: int, chunk: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", segment)
    written = dataset(25)
    rows, came = SegmentSlice.whole(written).rows, np.random.default_rng(3).permutation(25)
    writer = vault.begin(rows.shape, "ads.example")
    for start in range(0, 25, chunk):
        vault.add(writer, rows.rows(came[start : start + chunk]))
        assert writer.waiting < segment
    commit(vault, writer, ID, came.astype(np.uint32))
    assert_equal(vault.read(ID), written)
    pieces = list(vault.pieces(ID))
    assert len(pieces) == -(-25 // segment)
    for piece in pieces:
        assert (np.diff(piece.ranks) > 0).all()
        np.testing.assert_array_equal(piece.shares.features, written.shares.features[piece.ranks])
        np.testing.assert_array_equal(piece.shares.mask_shares, written.shares.mask_shares[piece.ranks])
    narrow = vault.read(ID, has_features=False).shares
    assert narrow.features.shape == (25, 0)
    np.testing.assert_array_equal(narrow.labels, written.shares.labels)


@pytest.mark.parametrize("features", [1, 300])
def test_features_that_nobody_asks_for_are_not_read(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, features: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    written = dataset(10, features=features)
    write(vault, written)
    path, _ = records_and_ranks(vault)
    stored, start = path.read_bytes(), HEADER + 4 * 16 + TAG
    end = start + 4 * features + TAG
    path.write_bytes(stored[:start] + bytes(end - start) + stored[end:])
    narrow = vault.read(ID, has_features=False)
    assert narrow.shares.features.shape == (10, 0)
    np.testing.assert_array_equal(narrow.report_ids, written.report_ids)
    np.testing.assert_array_equal(narrow.shares.labels, written.shares.labels)
    np.testing.assert_array_equal(narrow.shares.mask_shares, written.shares.mask_shares)
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    path.write_bytes(stored[:end] + bytes([stored[end] ^ 1]) + stored[end + 1 :])
    with pytest.raises(VaultDamaged):
        vault.read(ID, has_features=False)


def test_records_that_were_not_chosen_are_in_no_piece(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows = SegmentSlice.whole(dataset(12)).rows
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    ranks = np.full(12, NOT_CHOSEN, np.uint32)
    ranks[[9, 1]] = [0, 1]  # and nothing of the second segment
    commit(vault, writer, ID, ranks)
    read = vault.read(ID)
    np.testing.assert_array_equal(read.report_ids, rows.report_ids[[9, 1]])
    assert [piece.ranks.tolist() for piece in vault.pieces(ID)] == [[1], [0]]


def test_a_dataset_that_is_withdrawn_may_be_stored_as_another_one(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows, other = SegmentSlice.whole(dataset(6)).rows, b"e" * 32
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    vault.commit(writer, ID, np.arange(6, dtype=np.uint32))
    writer.withdraw()
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    commit(vault, writer, other, np.array([0, 1, NOT_CHOSEN, 2, 3, 4], np.uint32))
    np.testing.assert_array_equal(vault.read(other).report_ids, rows.report_ids[[0, 1, 3, 4, 5]])
    writer.remove()
    assert vault.delete_dropped() == 2
    assert len(vault.read(other)) == 5
    assert len(files_of(tmp_path)) == 4


def test_a_writer_that_is_removed_leaves_nothing(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows = SegmentSlice.whole(dataset(6)).rows
    writer = vault.begin(rows.shape, "ads.example")
    assert files_of(tmp_path) == []
    vault.add(writer, rows)
    assert len(files_of(tmp_path)) == 1
    writer.remove()
    writer.remove()
    assert vault.delete_dropped() == 1
    assert files_of(tmp_path) == []


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


def test_a_dataset_that_is_written_again_has_other_names_and_another_key(vault: Vault) -> None:
    found = []
    for _ in range(2):
        write(vault, dataset(5))
        found.append(records_and_ranks(vault))
    for before, after in zip(*found, strict=True):
        assert before.name != after.name
        assert len(before.read_bytes()) == len(after.read_bytes())
        assert before.read_bytes()[-TAG:] != after.read_bytes()[-TAG:]


def test_what_a_crash_left_unfinished_is_removed_at_the_start_and_the_rest_stays(
    vault: Vault, tmp_path: Path
) -> None:
    write(vault, dataset(5))
    before = files_of(tmp_path)
    (tmp_path / "datasets" / f"{bytes(32).hex()}.unfinished").write_bytes(b"half")
    again = Vault(tmp_path / "datasets", vault._ledger, KEYS.vault_key)
    assert_equal(again.read(ID), dataset(5))
    assert files_of(tmp_path) == before


def test_nothing_of_a_dataset_is_on_the_disk_in_clear(vault: Vault, tmp_path: Path) -> None:
    one = dataset(3)
    planted = np.tile(np.frombuffer(PATTERN, np.uint8), (3, 1))
    secret = OpenedDataset(
        dataset_id=ID,
        report_ids=one.report_ids,
        shares=InputShares(features=planted, labels=one.shares.labels, mask_shares=one.shares.mask_shares),
    )
    write(vault, secret)
    stored = b"".join(path.read_bytes() for path in files_of(tmp_path))
    for clear in (
        PATTERN[:8],
        one.report_ids[0].tobytes(),
        one.shares.mask_shares[0].tobytes(),
        one.shares.labels[0].tobytes(),
    ):
        assert clear not in stored
    assert all(path.stat().st_mode & 0o077 == 0 for path in files_of(tmp_path))


Damage = Callable[[bytes], bytes]
SEGMENT = 4
"""Records in a segment of the files that are damaged here."""


@pytest.mark.parametrize("which", [0, 1], ids=["records", "ranks"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda stored: stored[:-1], id="cut"),
        pytest.param(lambda stored: stored + b"\0", id="extended"),
        pytest.param(lambda stored: b"", id="emptied"),
        pytest.param(lambda stored: stored[:40], id="cut in the header"),
        pytest.param(lambda stored: b"X" + stored[1:], id="another magic"),
        pytest.param(lambda stored: stored[:4] + b"\x7f" + stored[5:], id="another version"),
        pytest.param(lambda stored: stored[:10] + bytes([stored[10] ^ 1]) + stored[11:], id="another salt"),
        pytest.param(lambda stored: stored[:40] + bytes([4]) + stored[41:], id="another shape"),
        pytest.param(lambda stored: stored[:40] + b"\xff" * 24 + stored[64:], id="a giant shape"),
        pytest.param(lambda stored: stored[:40] + bytes(24) + stored[64:], id="no shape"),
        pytest.param(lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]), id="another last bit"),
        pytest.param(lambda stored: stored[:-16] + bytes(16), id="no records"),
        pytest.param(lambda stored: stored[:100] + bytes([stored[100] ^ 1]) + stored[101:], id="a bit"),
    ],
)
def test_a_damaged_file_is_noticed(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, damage: Damage, which: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    write(vault, dataset(2 * SEGMENT))
    path = records_and_ranks(vault, number=1)[which]
    stored = path.read_bytes()
    assert damage(stored) != stored
    path.write_bytes(damage(stored))
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    with pytest.raises(VaultDamaged):
        list(vault.pieces(ID))


def swapped(files: list[Path], others: list[bytes]) -> None:
    files[0].write_bytes(files[2].read_bytes())


def repeated(files: list[Path], others: list[bytes]) -> None:
    files[2].write_bytes(files[0].read_bytes())
    files[3].write_bytes(files[1].read_bytes())


def of_another_attempt(files: list[Path], others: list[bytes]) -> None:
    files[2].write_bytes(others[2])


def ranks_of_another_attempt(files: list[Path], others: list[bytes]) -> None:
    files[3].write_bytes(others[3])


@pytest.mark.parametrize("damage", [swapped, repeated, of_another_attempt, ranks_of_another_attempt])
def test_segments_that_are_not_where_they_were_are_noticed(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, damage: Callable[[list[Path], list[bytes]], None]
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    others: list[bytes] = []
    for _ in range(2):
        write(vault, dataset(2 * SEGMENT))
        files = [*records_and_ranks(vault), *records_and_ranks(vault, number=1)]
        others = others or [path.read_bytes() for path in files]
    before = [path.read_bytes() for path in files]
    assert [len(one) for one in before] == [HEADER + SEGMENT * 72 + 4 * TAG, HEADER + 4 * SEGMENT + TAG] * 2
    damage(files, others)
    assert [path.read_bytes() for path in files] != before
    with pytest.raises(VaultDamaged):
        vault.read(ID)


def test_objects_that_a_ledger_names_for_another_dataset_are_noticed(vault: Vault) -> None:
    write(vault, dataset(5))
    write(vault, dataset(5, dataset_id=b"e" * 32))
    manifest = vault._ledger.manifests.of(ID)
    with vault._ledger.engine.begin() as connection:
        connection.execute(delete(SEGMENTS))
        add_manifest(connection, b"e" * 32, manifest)
    with pytest.raises(VaultDamaged):
        vault.read(b"e" * 32)


def test_another_storage_key_opens_nothing(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    write(vault, dataset(5))
    other = HelperKeys.generate(name="south", suite=HpkeSuite.X25519_AES128GCM)
    monkeypatch.setattr(vault, "_key_for", other.vault_key)
    with pytest.raises(VaultDamaged):
        vault.read(ID)


def test_a_missing_file_is_noticed(vault: Vault) -> None:
    with pytest.raises(VaultDamaged):
        vault.read(ID)
    with pytest.raises(VaultDamaged):
        vault.num_bytes(ID)
    write(vault, dataset(5))
    for path in records_and_ranks(vault):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(VaultDamaged):
            vault.read(ID)
        path.write_bytes(content)
    assert_equal(vault.read(ID), dataset(5))


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


@pytest.mark.parametrize("magic", ["SEGMENT_MAGIC", "RANKS_MAGIC"])
def test_a_file_of_another_layout_is_damaged_though_its_seals_hold(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, magic: str
) -> None:
    with monkeypatch.context() as during:
        during.setattr(sealed_segments, magic, b"MLSX\x7f\0\0\0")
        write(vault, dataset(5))
        assert_equal(vault.read(ID), dataset(5))
    with pytest.raises(VaultDamaged):
        vault.read(ID)


@pytest.mark.parametrize("failing", range(4))
def test_a_commit_that_fails_once_a_file_has_its_name_may_be_repeated(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Of the segment that waits and three files of ranks, each may be there, but perhaps not durably."""
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    rows, ranks = SegmentSlice.whole(dataset(10)).rows, np.arange(10, dtype=np.uint32)
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    put, puts = durable_file._put_in_place, count()

    def named_but_not_durable(*given: Any) -> None:
        put(*given)
        if next(puts) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as during:
        during.setattr(durable_file, "_put_in_place", named_but_not_durable)
        with pytest.raises(HelperUnavailable, match=os.strerror(errno.EIO)):
            vault.commit(writer, ID, ranks)
    commit(vault, writer, ID, ranks)
    writer.remove()
    vault.delete_dropped()
    assert_equal(vault.read(ID), dataset(10))
    assert len(files_of(tmp_path)) == 6


def test_no_name_is_given_before_its_bytes_are_on_the_disk(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is flushed, named, and its folder flushed, before there is a manifest."""
    done: list[tuple[str, str]] = []
    fsync, replace_file = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        done.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def named(path: Path, to: Path) -> Path:
        done.append(("name", path.name))
        return replace_file(path, to)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", named)
    rows = SegmentSlice.whole(dataset(5)).rows
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    manifest = vault.commit(writer, ID, np.arange(5, dtype=np.uint32))
    expected = []
    for one in manifest:
        unfinished = vault._disk.path(one.name).with_suffix(".unfinished").name
        expected += [("fsync", unfinished), ("name", unfinished), ("fsync", "datasets")]
    assert done == expected


def test_a_writer_is_one_dataset_and_takes_nothing_once_it_was_stored(vault: Vault) -> None:
    rows, ranks = SegmentSlice.whole(dataset(5)).rows, np.arange(5, dtype=np.uint32)
    writer = vault.begin(rows.shape, "ads.example")
    vault.add(writer, rows)
    with pytest.raises(AssertionError, match="a rank for each record"):
        vault.commit(writer, ID, ranks[:4])
    manifest = vault.commit(writer, ID, ranks)
    with pytest.raises(AssertionError, match="nothing is added"):
        vault.add(writer, rows)
    with pytest.raises(AssertionError, match="until that is withdrawn"):
        vault.commit(writer, b"e" * 32, ranks)
    assert vault.commit(writer, ID, ranks) == manifest


def test_a_dataset_or_an_object_that_the_ledger_does_not_know_is_no_dataset(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, dataset(5))
    (first, *_) = vault._ledger.manifests.of(ID)
    for name in ("elsewhere/tag/name", "elsewhere"):
        with pytest.raises(ObjectLost, match="in no store of this helper"):
            vault._read(replace(first, name=name))
    monkeypatch.setattr(vault._ledger, "dataset_of_any_task", lambda _: None)
    with pytest.raises(ObjectLost, match="no such dataset"):
        vault._segments(ID)
    with pytest.raises(ObjectLost, match="no objects of the dataset are known"):
        vault._segments(b"e" * 32)


def test_whoever_waits_for_a_segment_is_asked_again_and_again_whether_it_goes_on() -> None:
    coming, piece, looks = Future[Any](), object(), []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            coming.set_result(piece)

    assert vault_module._await(coming, look) is piece
    assert len(looks) == 3
    assert vault_module._await(coming, look) is piece
    assert len(looks) == 4


@pytest.mark.parametrize("counts", [[], [2], [2, 2], [2, 3, 1]])
def test_pieces_that_are_not_all_of_a_dataset_are_none(counts: list[int]) -> None:
    rows, start, pieces = SegmentSlice.whole(dataset(6)).rows, 0, []
    for length in counts:
        places = np.arange(start, start + length)
        pieces.append(SegmentSlice(ranks=places, rows=rows.rows(places)))
        start += length
    if start == 6:
        assert_equal(put_together(ID, pieces, 6), dataset(6))
    else:
        with pytest.raises(ValueError, match="as many records as it says"):
            put_together(ID, pieces, 6)


def test_a_dataset_in_one_piece_in_order_is_not_copied_and_one_out_of_order_is_sorted() -> None:
    one = dataset(6)
    rows = SegmentSlice.whole(one).rows
    same = put_together(ID, [SegmentSlice.whole(one)], 6)
    assert same.report_ids is one.report_ids
    assert same.shares.features is one.shares.features
    order = np.array([2, 0, 1, 5, 4, 3])
    assert_equal(put_together(ID, [SegmentSlice(ranks=order, rows=rows.rows(order))], 6), one)


def test_a_reader_that_leaves_waits_for_no_read_and_begins_no_more(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 1)
    write(vault, dataset(6))
    ended, shutdown = list[Any](), ThreadPoolExecutor.shutdown

    def recorded(pool: ThreadPoolExecutor, **how: Any) -> None:
        ended.append(how)
        shutdown(pool, **how)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", recorded)
    pieces = vault.pieces(ID)
    next(pieces)
    assert ended == []
    pieces.close()
    assert ended == [{"wait": False, "cancel_futures": True}]

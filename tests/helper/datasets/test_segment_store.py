"""A folder and a bucket of sealed objects, call by call."""

from collections import Counter
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helper.datasets.preparing import _AdmittedRows
from helper.datasets.segment_store import BucketStore, FolderStore, SegmentStore
from helper.datasets.updates import _shape_of, plan_segments
from helper.ledger.records import SealedObject
from maskedlark.errors import ReportReason
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.runtime.objects import ObjectLost
from tests.stores import InMemory

CONTENT = b"0123456789"
NAME = "folder/tag/name"


def sealed(name: str = NAME, content: bytes = CONTENT) -> SealedObject:
    digest = sha256(content).digest()
    return SealedObject(
        number=0, holds_ranks=False, name=name, digest=digest, num_bytes=len(content), records=1
    )


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentStore:
    made: SegmentStore = FolderStore(tmp_path) if request.param == "folder" else BucketStore(InMemory())
    return made


def test_a_folder_is_its_owners_and_what_was_left_half_is_removed_from_it(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    FolderStore(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("a.unfinished", "b.sealed", "unfinished"):
        (folder / name).write_bytes(b"x")
    store = FolderStore(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["b.sealed", "unfinished"]
    assert store.put_fresh(lambda: NAME, CONTENT) == NAME
    assert (folder / "folder.tag.name.sealed").read_bytes() == CONTENT


def test_what_was_put_is_read_whole_or_without_a_gap(store: SegmentStore) -> None:
    assert store.put_fresh(lambda: NAME, CONTENT) == NAME
    assert store.read(sealed()) == CONTENT
    for start, stop in ((0, 0), (0, 1), (3, 5), (3, 10), (0, 10)):
        assert store.read(sealed(), slice(start, stop)) == CONTENT[:start] + CONTENT[stop:]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b""])
def test_what_has_another_length_or_is_missing_is_lost(store: SegmentStore, content: bytes) -> None:
    store.put_fresh(lambda: NAME, content)
    with pytest.raises(ObjectLost):
        store.read(sealed())
    store.delete([NAME])
    with pytest.raises((ObjectLost, FileNotFoundError)):
        store.read(sealed())


def test_objects_are_listed_by_folder_and_deleted_by_name(store: SegmentStore) -> None:
    for name, content in ((NAME, CONTENT), ("folder/tag/other", b"x"), ("elsewhere/tag/name", b"y")):
        store.put_fresh(lambda name=name: name, content)  # type: ignore[misc]
    found = {one.name: one for page in store.list("folder") for one in page}
    assert {name: one.num_bytes for name, one in found.items()} == {NAME: 10, "folder/tag/other": 1}
    assert [one.name for page in store.list("elsewhere") for one in page] == ["elsewhere/tag/name"]
    store.delete([NAME, "folder/tag/never"])
    store.delete([NAME])
    assert [one.name for page in store.list("folder") for one in page] == ["folder/tag/other"]


def test_a_file_that_is_deleted_while_the_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stat = FolderStore(tmp_path), Path.stat
    for name in ("folder/tag/a", "folder/tag/b"):
        store.put_fresh(lambda name=name: name, CONTENT)  # type: ignore[misc]

    def gone(path: Path, **how: Any) -> Any:
        if path.name == "folder.tag.a.sealed":
            raise FileNotFoundError
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", gone)
    ((found,),) = store.list("folder")
    assert found.name == "folder/tag/b"
    assert found.modified_s == (tmp_path / "folder.tag.b.sealed").stat().st_mtime


def test_rows_of_chunks_are_put_one_behind_the_other() -> None:
    rows, draw = _AdmittedRows(), np.random.default_rng(3)
    ids, tags = draw.integers(0, 256, (2, 5, 16), dtype=np.uint8)
    is_admitted = np.array([True, False, True, True, False])
    for part, dropped in (
        (slice(0, 2), Counter({ReportReason.MALFORMED: 1})),
        (slice(2, 2), Counter[ReportReason]()),
        (slice(2, 5), Counter({ReportReason.MALFORMED: 2, ReportReason.DUPLICATE_ID: 1})),
    ):
        rows.add(ids[part], AdmittedSet(is_admitted=is_admitted[part], view_tags=tags[part], dropped=dropped))
    assert len(rows) == 5
    assert (rows.report_ids == ids).all()
    assert (rows.view_tags == tags).all()
    assert rows.is_admitted.tolist() == is_admitted.tolist()
    assert rows.dropped == {ReportReason.MALFORMED: 3, ReportReason.DUPLICATE_ID: 1}


@pytest.mark.parametrize(
    ("parameters", "payload_bytes", "most"),
    [
        (1, 1, 8_192),
        (2_048, 1, 8_192),
        (2_049, 1, 8_188),
        (1, 1_024, 8_192),
        (1, 1_025, 8_184),
        (1 << 23, 1, 2),
        (1, 1 << 24, 1),
        (1 << 25, 1, 1),
    ],
)
def test_a_segment_of_updates_is_bounded_by_shares_by_coordinates_and_by_bytes(
    parameters: int, payload_bytes: int, most: int
) -> None:
    form: Any = SimpleNamespace(length=parameters)
    plan = plan_segments(form, payload_bytes, b"round")
    assert (plan.round_id, plan.most_records) == (b"round", most)
    assert _shape_of(payload_bytes).widths == (16, payload_bytes, 0, 0)

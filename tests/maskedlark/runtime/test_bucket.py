"""The contract of a store, of the tests' own and of obstore's."""

import sys
import time
from pathlib import Path

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.runtime.bucket import opened_bucket
from maskedlark.runtime.objects import ObjectExists, ObjectLost, ObjectStore, StoreFailed
from tests.stores import InMemory


@pytest.fixture(params=["ours", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "ours":
        return InMemory(now=time.time())
    pytest.importorskip("obstore", reason="needs the extra cluster")
    return opened_bucket("memory:///" if request.param == "memory" else f"file://{tmp_path}/objects")


def test_an_object_reads_back_and_is_never_written_over(store: ObjectStore) -> None:
    store.put("f/a", b"first")
    with pytest.raises(ObjectExists):
        store.put("f/a", b"second")
    assert store.get("f/a") == b"first"
    store.put("f/empty", b"")
    assert store.get("f/empty") == b""


def test_a_missing_object_is_told_as_lost(store: ObjectStore) -> None:
    with pytest.raises(ObjectLost):
        store.get("f/a")


def test_a_folder_lists_its_own_objects(store: ObjectStore) -> None:
    for name in ("f/a", "f/b", "g/a"):
        store.put(name, b"12345")
    listed = sorted((one for page in store.list("f") for one in page), key=lambda one: one.name)
    assert [(one.name, one.num_bytes) for one in listed] == [("f/a", 5), ("f/b", 5)]
    assert all(one.modified_s > 1e9 for one in listed)
    assert [one.name for page in store.list("f", "f/a") for one in page] == ["f/b"]
    assert not list(store.list("none"))


def test_deleted_objects_are_gone_and_missing_ones_are_no_error(store: ObjectStore) -> None:
    for name in ("f/a", "f/b", "f/c"):
        store.put(name, b"x")
    store.delete(["f/none", "f/a", "f/b"])
    store.delete(["f/a"])
    store.delete([])
    assert [one.name for page in store.list("f") for one in page] == ["f/c"]


@pytest.mark.parametrize("url", ["", "bucket", "/folder", "http://host/x", "ftp://host/x"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidTask, match="s3://"):
        opened_bucket(url)


def test_a_bucket_that_nobody_answers_for_is_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs the extra cluster")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "secret-id",
        "AWS_SECRET_ACCESS_KEY": "secret-key",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    store = opened_bucket("s3://bucket/prefix")
    with pytest.raises(StoreFailed) as caught:
        store.get("f/a")
    assert "secret" not in str(caught.value)


def test_without_obstore_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(InvalidTask, match="cluster"):
        opened_bucket("s3://bucket/prefix")

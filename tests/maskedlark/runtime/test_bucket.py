"""The contract of a store, of the tests' own and of obstore's."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.runtime.bucket import open_bucket
from maskedlark.runtime.objects import ObjectExists, ObjectLost, ObjectStore, ObjectTooLong, StoreFailed
from tests.serving import serving
from tests.stores import InMemory


@pytest.fixture(params=["ours", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "ours":
        return InMemory(now=time.time())
    pytest.importorskip("obstore", reason="needs the extra cluster")
    return open_bucket("memory:///" if request.param == "memory" else f"file://{tmp_path}/objects")


def test_an_object_reads_back_and_is_never_written_over(store: ObjectStore) -> None:
    store.put("f/a", b"first")
    with pytest.raises(ObjectExists):
        store.put("f/a", b"second")
    assert store.get("f/a", 5) == b"first"
    store.put("f/empty", b"")
    assert store.get("f/empty", 0) == b""
    with pytest.raises(ObjectTooLong):
        store.get("f/a", 4)


def test_a_missing_object_is_told_as_lost(store: ObjectStore) -> None:
    with pytest.raises(ObjectLost):
        store.get("f/a", 5)


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
        open_bucket(url)


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
    store = open_bucket("s3://bucket/prefix")
    with pytest.raises(StoreFailed) as caught:
        store.get("f/a", 5)
    assert "secret" not in str(caught.value)


class _Answers(BaseHTTPRequestHandler):
    """What stands where a store should be: one answer to every request."""

    status = 404
    body = b""
    length = 0

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(self.length or len(self.body)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, **answer: object) -> Iterator[ObjectStore]:
    """A bucket whose endpoint gives one answer."""
    pytest.importorskip("obstore", reason="needs the extra cluster")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), answer))
    with serving(server):
        for name, value in {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "key",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield open_bucket("s3://bucket/prefix")


@pytest.mark.parametrize("body", [b"", b"default backend - 404", b"<Error><Code>NoSuchBucket</Code></Error>"])
def test_a_404_that_names_no_missing_object_is_a_failed_request(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with answering(monkeypatch, body=body) as store, pytest.raises(StoreFailed):
        store.get("f/a", 5)


@pytest.mark.parametrize("code", [b"NoSuchKey", b"BlobNotFound"])
def test_a_404_that_names_a_missing_object_is_a_lost_one(
    monkeypatch: pytest.MonkeyPatch, code: bytes
) -> None:
    body = b"<Error><Code>" + code + b"</Code></Error>"
    with answering(monkeypatch, body=body) as store, pytest.raises(ObjectLost):
        store.get("f/a", 5)


def test_nothing_is_read_of_an_object_that_is_longer_than_what_was_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(monkeypatch, status=200, body=b"x", length=1 << 42) as store, pytest.raises(ObjectTooLong):
        store.get("f/a", 5)


def test_without_obstore_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(InvalidTask, match="cluster"):
        open_bucket("s3://bucket/prefix")

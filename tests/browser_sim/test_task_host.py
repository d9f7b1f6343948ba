import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from browser_sim.endpoint import Protection
from browser_sim.task_host import load_bundle
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidTask, MaskedLarkError
from maskedlark.reports.sealing import SignedKeyList
from tests.browser_sim.sinks import http_sink
from tests.builders import NOW, World, world
from tests.patience import HANGS_S

INSECURE = Protection(insecure=True)


@pytest.fixture(scope="module")
def ours() -> World:
    return world()


def test_a_bundle_is_read_from_a_file_with_or_without_a_last_newline(ours: World, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    for end in (b"", b"\n"):
        path.write_bytes(canonical.encode(ours.bundle) + end)
        assert load_bundle(str(path), INSECURE, now=NOW) == ours.bundle


def test_a_bundle_is_fetched_from_a_task_host(ours: World) -> None:
    with http_sink(files={"/v1/tasks/ab": canonical.encode(ours.bundle)}) as url:
        assert load_bundle(f"{url}/v1/tasks/ab", INSECURE, now=NOW) == ours.bundle


def test_a_bundle_that_a_helper_did_not_sign_is_refused(ours: World, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(
        canonical.encode(replace(ours.bundle, signatures=(ours.bundle.signatures[0], bytes(64))))
    )
    with pytest.raises(InvalidTask, match="south"):
        load_bundle(str(path), INSECURE, now=NOW)


def test_helpers_must_be_trusted_where_a_list_is_given(ours: World, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(canonical.encode(ours.bundle))
    keys = [helper.verify_key for helper in ours.task.helpers]
    assert load_bundle(str(path), INSECURE, [*keys, bytes(32)], now=NOW) == ours.bundle
    with pytest.raises(InvalidTask, match="'south' is not trusted"):
        load_bundle(str(path), INSECURE, keys[:1], now=NOW)


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * (canonical.MAX_BYTES + 5)])
def test_what_is_no_bundle_is_refused_from_file_and_host(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(content)
    with pytest.raises(InvalidTask):
        load_bundle(str(path), INSECURE, now=NOW)
    with http_sink(files={"/t": content}) as url, pytest.raises(InvalidTask):
        load_bundle(f"{url}/t", INSECURE, now=NOW)


def test_a_bundle_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="cannot read"):
        load_bundle(str(tmp_path / "absent"), INSECURE, now=NOW)
    with (
        http_sink() as url,
        pytest.raises(
            InvalidTask,
            match=r"answered 404, not found, for .*: a task is at /v1/tasks/ID, with its id in full",
        ),
    ):
        load_bundle(f"{url}/absent", INSECURE, now=NOW)


def test_a_task_host_that_is_away_is_named_as_such() -> None:
    with pytest.raises(HelperUnavailable):
        load_bundle("http://127.0.0.1:1/v1/tasks/ab", INSECURE, now=NOW)


@contextmanager
def answering(answer: bytes, asked: list[bytes] | None = None) -> Iterator[str]:
    """A host that sends these bytes to the first who asks, and closes; what was asked is added to a list."""
    heard = [] if asked is None else asked

    def serve() -> None:
        connection, _ = door.accept()
        with connection:
            heard.append(connection.recv(1 << 16))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(HANGS_S)
        host = Thread(target=serve)
        host.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}/task"
        finally:
            host.join()


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/t\r\n\r\n", InvalidTask, "answered 302"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", InvalidTask, "answered 204"),
        (b"HTTP/1.1 503 Away\r\n\r\n", HelperUnavailable, "answered 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", HelperUnavailable, "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", HelperUnavailable, "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", HelperUnavailable, "IncompleteRead"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n", HelperUnavailable, "ValueError"),
        (b"no HTTP\r\n\r\n", HelperUnavailable, "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200, HelperUnavailable, "HTTPException"),
        (b"", HelperUnavailable, r"RemoteDisconnected \(if it speaks TLS, .*https://"),
    ],
    ids=["elsewhere", "empty", "away", "cut", "no chunk", "less", "nowhere", "no HTTP", "headers", "silent"],
)
def test_an_answer_that_is_no_bundle_is_refused_with_its_cause(
    answer: bytes, error: type[MaskedLarkError], why: str
) -> None:
    with answering(answer) as url, pytest.raises(error, match=why):
        load_bundle(url, INSECURE, now=NOW)


@pytest.mark.parametrize("path", ["a b", "\u00e4", "a\nb"], ids=["space", "not ASCII", "line"])
def test_a_url_that_cannot_be_asked_for_is_refused(path: str) -> None:
    with pytest.raises(InvalidTask, match="is not valid: expected http"):
        load_bundle(f"http://127.0.0.1:1/{path}", INSECURE, now=NOW)


def test_a_name_and_a_password_in_a_url_become_a_header_and_are_not_shown() -> None:
    asked = list[bytes]()
    with answering(b"HTTP/1.1 403 Away\r\n\r\n", asked) as url, pytest.raises(InvalidTask) as refused:
        load_bundle(url.replace("//", "//me%40home:a:b%2F@"), INSECURE, now=NOW)
    assert b"\r\nAuthorization: Basic " + b64encode(b"me@home:a:b/") + b"\r\n" in asked[0]
    assert str(refused.value) == f"the task host answered 403 for {url}"


def test_plaintext_goes_through_no_proxy(ours: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with http_sink(files={"/task": canonical.encode(ours.bundle)}) as url:
        assert load_bundle(f"{url}/task", INSECURE, now=NOW) == ours.bundle


def test_a_bundle_is_not_fetched_in_plaintext_unless_asked_for() -> None:
    with pytest.raises(InvalidTask, match="--insecure"):
        load_bundle("http://127.0.0.1:1/v1/tasks/ab", Protection(), now=NOW)


def test_key_lists_that_are_over_are_refused_however_well_signed(ours: World, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    lists = [SignedKeyList.sign(keys.signing, (keys.opening.public(),), not_after=NOW) for keys in ours.keys]
    path.write_bytes(canonical.encode(replace(ours.bundle, key_lists=(lists[0], lists[1]))))
    assert load_bundle(str(path), INSECURE, now=NOW)
    with pytest.raises(InvalidTask, match="'north': the helper's list of HPKE keys is over: fetch"):
        load_bundle(str(path), INSECURE, now=NOW + 1)

"""An ad server elsewhere that is hostile: it takes no memory and no time without end, and moves no cursor."""

import json
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from threading import Thread
from typing import Any, Final

import pytest

from adserver.cli.main import app
from adserver.client import api_session
from adserver.client.api_session import ApiSession
from adserver.client.remote import RemoteAdServer
from adserver.records.access import GrantKind, Scope
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, MaskedLarkError
from maskedlark.terminal.exit_status import run
from tests.adserver.client.test_remote import DATASET, RUNNING, served
from tests.adserver.painted import Painted
from tests.maskedlark.test_escape import HOSTILE, OBEYED
from tests.patience import HANGS_S
from tests.serving import serving

__all__ = ["served"]

COMMANDS: Final = (
    ("task", "list"),
    ("task", "show"),
    ("dataset", "list"),
    ("budget",),
    ("job", "list"),
    ("job", "show", RUNNING),
    ("aggregate", "--again", "00"),
    ("evaluate", "--again", "00"),
)
HOSTILE_VALUES: Final[tuple[Any, ...]] = (
    "text", "12", -1, -(10**18), 10**300, 10**400, 1e999, -1e308, float("nan"), True, None, [], {},
)  # fmt: skip
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

Change = Callable[[str, Any], Any]


def changed(value: Any, change: Change, name: str = "") -> Any:
    """A document with every string changed by the name of the field that it is in."""
    if isinstance(value, dict):
        return {key: changed(one, change, key) for key, one in value.items()}
    if isinstance(value, list):
        return [changed(one, change, name) for one in value]
    return change(name, value)


@contextmanager
def between(url: str, change: Change, *, refuses: bool = False) -> Iterator[str]:
    """The URL of a server that asks the one at `url`, and changes what it says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.request.Request(  # noqa: S310  ours
                url + self.path, headers={"authorization": self.headers["authorization"]}
            )
            with suppress(OSError), urllib.request.urlopen(asked, timeout=HANGS_S) as answer:  # noqa: S310
                said = json.load(answer)
            if refuses:
                said = {"error": "JobRefused", "reason": "unknown_job", "detail": HOSTILE}
            body = json.dumps(changed(said, change)).encode()
            self.send_response(409 if refuses else 200, None if refuses else "OK")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def printed(capsys: pytest.CaptureFixture[str], url: str, token: str, *command: str) -> str:
    """What a command prints, on both streams."""
    with suppress(SystemExit):
        run(lambda: app([*command, "--url", url, "--token", token]))
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_no_field_of_an_answer_moves_a_cursor_or_forges_a_line(
    served: tuple[Painted, str], command: tuple[str, ...], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    of, url = served
    token, names = of.grant(GrantKind.TOKEN, Scope.OPERATE), set[str]()

    def note(name: str, value: Any) -> Any:
        names.add(name)
        return value

    asked = (*command, "--json") if as_json else command
    with between(url, note) as noted:
        printed(capsys, noted, token, *asked)
    for hostile in sorted(names):

        def spoil(name: str, value: Any, hostile: str = hostile) -> Any:
            return f"{value}{HOSTILE}" if name == hostile else value

        with between(url, spoil) as spoilt:
            said = printed(capsys, spoilt, token, *asked)
        assert said
        assert not OBEYED.search(said), hostile


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_no_value_of_an_answer_ends_a_command_with_a_traceback(
    served: tuple[Painted, str],
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, url = served
    token, answers, names = of.grant(GrantKind.TOKEN, Scope.OPERATE), dict[str, Any](), set[str]()
    honest = ApiSession._exchange

    def kept(session: ApiSession, method: str, path: str, *rest: Any, **named: Any) -> tuple[int, bytes]:
        status, content = honest(session, method, path, *rest, **named)
        answers[path] = json.loads(content)
        return status, content

    def note(name: str, value: Any) -> Any:
        names.add(name)
        return value

    monkeypatch.setattr(ApiSession, "_exchange", kept)
    printed(capsys, url, token, *command)
    changed(list(answers.values()), note)
    for name in sorted(names):
        for hostile in HOSTILE_VALUES:

            def spoil(at: str, value: Any, name: str = name, hostile: Any = hostile) -> Any:
                return hostile if at == name else value

            def spoilt(
                _session: ApiSession,
                _method: str,
                path: str,
                *_rest: Any,
                spoil: Change = spoil,
                **_named: Any,
            ) -> tuple[int, bytes]:
                if path not in answers:
                    raise JobRefused(JobReason.UNKNOWN_TASK, "another was asked for")
                return 200, json.dumps(changed(answers[path], spoil)).encode()

            monkeypatch.setattr(ApiSession, "_exchange", spoilt)
            said = printed(capsys, url, token, *command)
            assert "Traceback" not in said, (name, hostile, said[-600:])
            assert len(said) < 20_000


def test_a_refusal_s_words_are_text(served: tuple[Painted, str], capsys: pytest.CaptureFixture[str]) -> None:
    of, url = served
    with between(url, lambda _name, value: value, refuses=True) as refusing:
        said = printed(capsys, refusing, of.grant(GrantKind.TOKEN, Scope.OPERATE), "job", "show", RUNNING)
    assert re.fullmatch(r"JobRefused \(unknown_job\): a.*ERROR forged.*\n", said)
    assert not OBEYED.search(said)


@contextmanager
def saying(*pieces: bytes, pause: bool = False) -> Iterator[str]:
    """The URL of a server that answers a request with these bytes, the last of them again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(HANGS_S)

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(HANGS_S)
                    connection.recv(65_536)
                    for piece in pieces:
                        connection.sendall(piece)
                    if pause:
                        connection.recv(1)  # until the other side ends it
                    for piece in repeat(pieces[-1]):
                        connection.sendall(piece)

        serving = Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            serving.join(HANGS_S)


MIB = 1 << 20


@pytest.mark.parametrize(
    "head",
    [b"\r\n", b"transfer-encoding: chunked\r\n\r\n", b"content-length: 99999999999\r\n\r\n"],
    ids=range(3),
)
def test_an_endless_answer_is_read_to_its_limit(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_session, "MOST_ANSWER_BYTES", 4 * MIB)
    piece = b"100000\r\n" + bytes(MIB) + b"\r\n" if b"chunked" in head else bytes(MIB)
    with (
        saying(HEAD + head, piece) as url,
        pytest.raises(JobRefused, match="more than 4194304 bytes") as refused,
    ):
        RemoteAdServer(url=url, token="").intake()
    assert refused.value.reason is JobReason.BAD_ANSWER


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD, b"x: y"),
        (b"HTTP/1.1 100 Continue\r\n\r\n",),
        (HEAD + b"content-length: 9\r\n\r\n", b"{"),
    ],
    ids=["its head", "before its head", "its body"],
)
def test_an_answer_that_does_not_end_is_given_up_in_time(pieces: tuple[bytes, ...]) -> None:
    with saying(*pieces, pause=True) as url, pytest.raises(HelperUnavailable):
        RemoteAdServer(url=url, token="", timeout_s=0.5).intake()


@pytest.mark.parametrize(
    "listed", [lambda far: far.datasets(), lambda far: far.history(bytes(16))], ids=["a list", "rounds"]
)
def test_a_list_without_end_is_given_up(
    listed: Callable[[RemoteAdServer], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_session, "MOST_PAGES", 3)
    with pages() as url, pytest.raises(JobRefused, match="a list of more than 3 pages"):
        listed(RemoteAdServer(url=url, token=""))


@contextmanager
def pages(page: dict[str, Any] | None = None) -> Iterator[str]:
    """The URL of a server on which every page has another one after it."""
    body = json.dumps({"items": [], "next": "more", "next_after_rounds": 1, **(page or {})}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def test_all_pages_of_a_list_have_one_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_session, "MOST_LIST_BYTES", 4 * MIB)
    with (
        pages({"filling": "x" * MIB}) as url,
        pytest.raises(JobRefused, match=r"more than 10\d{5} bytes"),  # what the first three pages left
    ):
        RemoteAdServer(url=url, token="").datasets()


def test_all_pages_of_a_list_have_one_bound_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = iter(range(10**6))
    monkeypatch.setattr(api_session, "monotonic", lambda: 100.0 * next(moment))
    with pages() as url, pytest.raises(HelperUnavailable):
        RemoteAdServer(url=url, token="", timeout_s=900.0).datasets()


def test_a_page_has_no_more_items_than_were_asked_for() -> None:
    rounds = {"rounds_done": 1, "finished_at_s": 1.0}
    with pages({"items": [rounds] * 1_001}) as url, pytest.raises(JobRefused, match="a page of 1001 items"):
        RemoteAdServer(url=url, token="").history(bytes(16))


def test_what_a_refusal_says_is_cut(served: tuple[Painted, str], capsys: pytest.CaptureFixture[str]) -> None:
    of, url = served

    def long(name: str, value: Any) -> Any:
        return value * 10_000 if name == "detail" else value

    with between(url, long, refuses=True) as refusing:
        said = printed(capsys, refusing, of.grant(GrantKind.TOKEN, Scope.OPERATE), "job", "show", RUNNING)
    assert len(said) < 30_000


@pytest.mark.parametrize("said", [{}, {"items": 3}, {"items": [3]}, {"items": [{}]}], ids=range(4))
@pytest.mark.parametrize(
    "ask",
    [
        lambda far: far.tasks(),
        lambda far: far.task(""),
        lambda far: far.task(DATASET),
        lambda far: far.datasets(),
        lambda far: far.jobs(),
        lambda far: far.job(""),
        lambda far: far.queries(),
        lambda far: far.helpers(),
        lambda far: far.tokens(),
        lambda far: far.intake(),
        lambda far: far.history(bytes(16)),
        lambda far: far.budgets(dataset=DATASET),
    ],
    ids=range(12),
)
def test_an_answer_of_another_form_is_a_typed_error(
    ask: Callable[[RemoteAdServer], object], said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps(said).encode()
    monkeypatch.setattr(ApiSession, "_exchange", lambda _self, *_asked, **_named: (200, content))
    with pytest.raises(MaskedLarkError):
        ask(RemoteAdServer(url="http://127.0.0.1:1", token=""))

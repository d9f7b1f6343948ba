"""Each HTTPS client says why it does not accept a server's certificate, at once and in the same words."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from adserver.client.remote import RemoteAdServer
from adserver.peers.retrying import Backoff, with_retries
from browser_sim.delivery import connect, deliver
from browser_sim.devices.http_client import HttpClient
from browser_sim.download import fetch_file
from browser_sim.endpoint import Protection
from browser_sim.sealed_batch import SealedBatch
from browser_sim.source import InvalidSource
from browser_sim.task_host import load_bundle
from browser_sim.waiting import BRIEF_S, patiently
from maskedlark.errors import HelperUnavailable, InvalidSetting
from maskedlark.rpc.certificate_faults import EXPIRED, NOT_FOR_HOST, NOT_TRUSTED, explain_rejection
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import TrustOnly
from tests.browser_sim.sinks import Intake, http_sink
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S

_NOT_YET: Final = "its certificate is not valid yet"
_AGO: Final = {"expired": timedelta(days=-30), "early": timedelta(days=30)}


def _never(_: float) -> None:
    raise AssertionError("waits for a certificate to change")


def _load(url: str, ca: Path) -> Any:
    protection = Protection(tls=TrustOnly(trusted_authorities=ca))
    return patiently(
        lambda: load_bundle(f"{url}/task", protection, now=NOW),
        give_up_after_s=BRIEF_S,
        tell=lambda _: None,
        pause=_never,
    )


def _upload(url: str, ca: Path) -> Any:
    ours = world()
    with connect(url, Protection(tls=TrustOnly(trusted_authorities=ca))) as sender:
        return deliver(sender, [SealedBatch.of(reports(ours, examples(ours.task, 1)))], pause=_never)


def _fetch_round(url: str, ca: Path) -> Any:
    with Protection(tls=TrustOnly(trusted_authorities=ca)).http_client(url) as client:
        return HttpClient(client, url, _never).fetch("/round", limit=1)


def _send_answer(url: str, ca: Path) -> Any:
    with Protection(tls=TrustOnly(trusted_authorities=ca)).http_client(url) as client:
        return HttpClient(client, url, _never).send("/answer", b"", "text/plain")


def _list_tasks(url: str, ca: Path) -> Any:
    def tell(_: HelperUnavailable) -> None:
        raise AssertionError("waits for a certificate to change")

    there = RemoteAdServer(url=url, token="", ca=ca, backoff=Backoff(tell=tell))
    return with_retries(there.tasks, there.backoff)


CLIENTS: Final[tuple[Callable[[str, Path], Any], ...]] = (
    _load,
    _upload,
    _fetch_round,
    _send_answer,
    _list_tasks,
)


@contextmanager
def _serving(folder: Path, *, name: str = "localhost", when: str = "now") -> Iterator[tuple[str, TlsFiles]]:
    """Serve HTTPS at 127.0.0.1 with a certificate; yield the URL and the files."""
    folder.mkdir()
    begins = datetime.now(UTC) + _AGO.get(when, timedelta())
    files = write_certificate(folder, name=name, now=begins, days=7)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.private_key)
    with http_sink(Intake(), tls=context) as url:
        yield url, files


@pytest.mark.parametrize("call", CLIENTS)
def test_a_certificate_for_another_host_is_said_at_once(
    tmp_path: Path, call: Callable[[str, Path], Any]
) -> None:
    with (
        _serving(tmp_path / "server") as (url, files),
        pytest.raises(InvalidSetting, match=f": {NOT_FOR_HOST}$"),
    ):
        call(url, files.certificate)


@pytest.mark.parametrize("call", CLIENTS)
def test_a_certificate_that_is_not_trusted_is_said_with_the_option_that_trusts_it(
    tmp_path: Path, call: Callable[[str, Path], Any]
) -> None:
    with (
        _serving(tmp_path / "server", name="127.0.0.1") as (url, _),
        _serving(tmp_path / "other", name="127.0.0.1") as (_, others),
        pytest.raises(InvalidSetting, match=f": {NOT_TRUSTED} with --(tls|url)-ca"),
    ):
        call(url, others.certificate)


@pytest.mark.parametrize(("when", "said"), [("expired", EXPIRED), ("early", _NOT_YET)])
def test_a_certificate_that_is_not_valid_now_is_said_with_the_reason(
    tmp_path: Path, when: str, said: str
) -> None:
    with (
        _serving(tmp_path / "server", name="127.0.0.1", when=when) as (url, files),
        pytest.raises(InvalidSetting, match=f"^the task host: {said}"),
    ):
        _load(url, files.certificate)


def test_a_mirror_whose_certificate_is_not_trusted_is_said_among_the_failures(tmp_path: Path) -> None:
    with (
        _serving(tmp_path / "server", name="127.0.0.1") as (url, _),
        httpx.Client(timeout=HANGS_S) as client,
        pytest.raises(InvalidSource, match=NOT_TRUSTED),
    ):
        fetch_file(client, [url], "file", most=1, digest="00", right=lambda body: body)


def test_another_error_has_no_certificate_to_explain() -> None:
    assert explain_rejection(ssl.SSLError(1, "WRONG_VERSION_NUMBER"), "") is None
    assert explain_rejection(ConnectionRefusedError(), "") is None


def test_openssls_words_are_shown_for_any_other_cause() -> None:
    odd = ssl.SSLCertVerificationError()
    odd.verify_code, odd.verify_message = 24, "invalid CA certificate"
    said = explain_rejection(httpx.ConnectError("no"), "")
    assert said is None
    assert explain_rejection(odd, "") == "its certificate is not accepted: invalid CA certificate"

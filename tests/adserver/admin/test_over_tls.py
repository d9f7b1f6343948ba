"""The dashboard and the API over TLS, with a certificate of the server's own."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client import Client
from adserver.client.remote import RemoteAdServer
from adserver.dashboard.serving import open_dashboard
from adserver.ingest.http_server import HttpServer
from adserver.peers.retrying import ONCE
from adserver.records.access import GrantKind, Scope
from adserver.records.server_settings import DashboardSettings
from maskedlark.errors import HelperUnavailable, InvalidSetting, InvalidTask
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from tests.adserver.painted import Painted, painted
from tests.patience import HANGS_S

RUNNER: Final = CliRunner()


@dataclass(frozen=True, kw_only=True)
class Over:
    """The ad server over TLS."""

    of: Painted
    port: int
    tls: TlsFiles

    @property
    def origin(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return f"__Host-maskedlark-{self.port}"

    def client(self, token: str = "", **headers: str) -> httpx.Client:
        """A client that trusts the server's own certificate, and no authority."""
        trusting = ssl.create_default_context(cafile=str(self.tls.certificate))
        shown = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.origin, verify=trusting, headers={**shown, **headers}, timeout=HANGS_S
        )


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    folder = Path(tmp_path_factory.mktemp("tls"))
    tls = write_certificate(folder, name="localhost", hosts=("127.0.0.1",), now=datetime.now(UTC))
    with ExitStack() as stack:
        of = painted(folder / "adserver", tls=tls)
        stack.callback(of.close)
        server = HttpServer(stack.enter_context(of.door()), "127.0.0.1:0", tls, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        yield Over(of=of, port=server.port, tls=tls)


def test_plain_http_to_a_server_with_tls_is_told_of_https(over: Over) -> None:
    token = over.of.grant(GrantKind.TOKEN, Scope.READ)
    plain = RemoteAdServer(url=f"http://127.0.0.1:{over.port}", token=token, backoff=ONCE)
    with pytest.raises(HelperUnavailable, match="its URL begins with https://"):
        plain.tasks()


def test_a_login_over_tls_is_a_host_cookie(over: Over) -> None:
    with over.client() as client:
        answer = client.get(f"/login?code={over.of.grant(GrantKind.LOGIN, Scope.READ)}")
        name, _, rest = answer.headers["set-cookie"].partition("=")
        flags = {one.strip().lower() for one in rest.split(";")[1:]}
        assert name == over.cookie
        assert {"secure", "httponly", "path=/", "samesite=strict"} <= flags
        assert not any(flag.startswith("domain") for flag in flags)  # or browsers refuse the prefix
        assert client.get("/").status_code == 200


def test_a_cookie_without_the_prefix_is_no_session_over_tls(over: Over) -> None:
    """A page of another port or of plain http can plant such a cookie, and none with the prefix."""
    session = over.of.grant(GrantKind.SESSION)
    for name, status in ((over.cookie, 200), (over.cookie.removeprefix("__Host-"), 401)):
        with over.client(cookie=f"{name}={session}") as client:
            assert client.get("/").status_code == status


@pytest.mark.parametrize(
    ("scheme", "status"), [("https", 409), ("http", 403)], ids=["from its own page", "from a plain page"]
)
def test_an_origin_over_tls_is_https(over: Over, scheme: str, status: int) -> None:
    origin = f"{scheme}://127.0.0.1:{over.port}"
    with over.client(cookie=f"{over.cookie}={over.of.grant(GrantKind.SESSION)}", origin=origin) as client:
        assert client.post("/jobs/06/resume").status_code == status  # it is done: nothing to resume


def test_every_answer_over_tls_is_strict_too(over: Over) -> None:
    with over.client(over.of.grant()) as client, over.client() as stranger:
        for answer in (client.get("/"), client.get("/api/v1/jobs"), stranger.get("/")):
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400
        assert stranger.get("/api/v1/jobs").status_code == 401


def test_the_helpers_page_shows_the_server_s_certificate(over: Over) -> None:
    with over.client(over.of.grant()) as client:
        shown = client.get("/api/v1/helpers").json()["certificates"]
        assert [one["whose"] for one in shown] == ["this ad server"]
        assert shown[0]["sha256"][:23] in client.get("/helpers").text


def test_a_far_client_trusts_the_certificate_that_it_is_given_and_no_other(over: Over) -> None:
    token = over.of.grant()
    with Client(url=over.origin, token=token, ca=over.tls.certificate) as far:
        assert [one.job_id for one in far.jobs()] == [one.job_id for one in over.of.client.jobs()]
    with pytest.raises(InvalidSetting, match=r"none of those that are trusted.*--url-ca") as refusal:
        RemoteAdServer(url=over.origin, token=token).tasks()
    assert token not in str(refusal.value)


def test_a_command_reaches_an_ad_server_elsewhere_over_tls(over: Over) -> None:
    there = ["--url", over.origin, "--token", over.of.grant(), "--url-ca", str(over.tls.certificate)]
    done = RUNNER.invoke(app, ["job", "show", "02", "--json", *there])
    assert done.exit_code == 0, done.output
    assert '"state": "running"' in done.output


def test_nothing_is_answered_in_the_clear(over: Over) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(
            f"http://127.0.0.1:{over.port}/",
            headers={"authorization": f"Bearer {over.of.grant()}"},
            timeout=HANGS_S,
        )


def test_beyond_loopback_it_starts_with_tls_only(over: Over) -> None:
    settings = DashboardSettings(listen="0.0.0.0:0")
    none_is_asked: Any = ()
    with ExitStack() as stack, pytest.raises(InvalidTask, match="not on loopback"):
        open_dashboard(
            stack,
            settings,
            engine=over.of.engine,
            helpers=none_is_asked,
            data=over.of.folder,
            tls=None,
            intake=lambda: over.of.counts,
            clock=over.of.clock,
        )

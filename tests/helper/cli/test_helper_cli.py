"""The helper as an operator meets it: real processes, real folders."""

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.core import TyperOption
from typer.testing import CliRunner

from helper.cli import status as helper_status
from helper.cli.main import COMMANDS, app
from helper.ledger.ledger import LEDGER_FILE
from helper.ledger.schema import TASKS
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.task import HelperIdentity
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel, make_server
from maskedlark.rpc.trust import sha256_of
from maskedlark.terminal.exit_status import REFUSED, UNAVAILABLE
from maskedlark.terminal.tls_options import tls_files
from tests.forged import holder
from tests.patience import HANGS_S, connect

HELPER = [sys.executable, "-c", "from helper.cli.main import main; main()"]
WIDE = {**os.environ, "COLUMNS": "300"}


def helper(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HELPER, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
        env=WIDE,
    )


@contextmanager
def serving(
    data: Path, *options: str, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A helper process, begun by what comes `before`, and the address that it wrote once it was ready."""
    port_file = data / "port"
    command = [
        *before,
        *HELPER,
        "serve",
        "--data",
        str(data),
        "--listen",
        "127.0.0.1:0",
        "--insecure",
        "--port-file",
        str(port_file),
        *options,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=WIDE)
    try:
        deadline = time.monotonic() + HANGS_S
        while not port_file.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, port_file.read_text()
    finally:
        process.kill()
        process.communicate()
        port_file.unlink(missing_ok=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path / "data")
    return tmp_path / "data"


def test_strangers_that_connect_and_say_nothing_do_not_use_up_a_helpers_files(data: Path) -> None:
    # The helper's limit alone: this process may have more files open than that. 1,024 is usual.
    few_files = ("sh", "-c", 'ulimit -S -n 256 && exec "$@"', "sh")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2_048), hard), hard))
    try:
        with serving(data, before=few_files) as (_, address), ExitStack() as opened:
            host, port = address.rsplit(":", 1)
            for _ in range(300):
                opened.enter_context(connect((host, int(port))))
            with make_channel(address, None) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                told = stub.Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S)
            assert told.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_keygen_prints_the_identity_that_tasks_name(tmp_path: Path) -> None:
    made = helper("keygen", "--data", tmp_path / "a", "--name", "north", "--json")
    assert made.returncode == 0
    identity = canonical.decode(HelperIdentity, made.stdout.strip().encode())
    assert identity == HelperKeys.read(tmp_path / "a").identity


def test_keygen_for_people_shows_public_keys_and_no_secret(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        app,
        ["keygen", "--data", str(tmp_path / "a"), "--name", "north", "--suite", "mlkem768-x25519-aes128gcm"],
    )
    keys = HelperKeys.read(tmp_path / "a")
    assert shown.exit_code == 0
    assert keys.identity.verify_key.hex() in shown.output
    assert keys.identity.fingerprint in shown.output
    assert keys.opening_keys(0)[0].suite is HpkeSuite.MLKEM768_X25519_AES128GCM
    secrets = [part for part in (tmp_path / "a" / "keys.json").read_text().split('"') if len(part) >= 64]
    assert not any(secret in shown.output for secret in secrets)


def test_keygen_refuses_to_overwrite_with_one_line(data: Path) -> None:
    refused = helper("keygen", "--data", data, "--name", "north")
    assert refused.returncode == REFUSED
    assert refused.stderr.count("\n") == 1
    assert "never overwritten" in refused.stderr


def test_keygen_for_a_host_makes_a_certificate_too(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        app,
        [
            "keygen",
            "--data",
            str(tmp_path),
            "--name",
            "north",
            "--host",
            "helper.example",
            "--host",
            "127.0.0.1",
        ],
    )
    assert shown.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"keys.json", "tls.key", "tls.crt", "trusted.crt"}


def test_keygen_beside_another_certificate_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "tls.key").touch()
    refused = helper("keygen", "--data", tmp_path, "--name", "north", "--host", "helper.example")
    assert refused.returncode == REFUSED
    assert "tls.key exists already: leave out --host" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tls.key"]
    # Where there are keys, too, nothing is left to make
    (tmp_path / "keys.json").touch()
    refused = helper("keygen", "--data", tmp_path, "--name", "north", "--host", "helper.example")
    assert refused.returncode == REFUSED
    assert "leave out" not in refused.stderr
    assert "keys.json exists already" in refused.stderr


@pytest.mark.parametrize("act", [("rotate",), ("wrap", "--with", "file")])
def test_keys_of_a_folder_without_any_are_not_changed(tmp_path: Path, act: tuple[str, ...]) -> None:
    refused = helper("keys", *act, "--data", tmp_path / "nowhere")
    assert refused.returncode == REFUSED
    assert "nowhere does not exist: --data is the folder in which `keygen` made" in refused.stderr
    assert not [*tmp_path.iterdir()]


OF_A_FOLDER = (
    ("serve", "--listen", "127.0.0.1:0"),
    ("serve", "--listen", "127.0.0.1:0", "--insecure"),
    ("status", "--address", "localhost:1"),
    ("budget",),
    ("audit", "list"),
    ("audit", "export"),
    ("audit", "verify"),
    ("keys", "list"),
    ("keys", "rotate"),
    ("keys", "wrap", "--with", "file"),
    ("certificate", "show"),
    ("certificate", "renew"),
    ("certificate", "renew", "--host", "helper.example"),
    ("certificate", "activate"),
    ("certificate", "wrap", "--with", "file"),
)


@pytest.mark.parametrize("words", OF_A_FOLDER, ids=" ".join)
def test_a_wrong_data_folder_is_told_of_in_plain_words_and_gets_no_file(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for name, said in (
        ("missing", "does not exist"),
        ("file", "is not a folder"),
        ("empty", r"is empty|contains no|tls\.crt does not exist"),
    ):
        ended = CliRunner().invoke(app, [*words, "--data", str(tmp_path / name)], env={"COLUMNS": "300"})
        told = f"{ended.output}{ended.exception}"
        assert ended.exit_code != 0
        assert isinstance(ended.exception, MaskedLarkError | SystemExit), told
        assert re.search(f"{tmp_path / name} ({said})|{tmp_path / name}/({said})", told), told
        assert "Not a directory" not in told
    assert sorted(tmp_path.rglob("*")) == before


def test_keys_are_not_made_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = helper("keygen", "--name", "north", "--data", tmp_path / "file")
    assert refused.stderr == (
        f"InvalidSetting: {tmp_path}/file is not a folder: choose another name with --data\n"
    )


def test_a_helper_whose_ledger_cannot_be_read_says_that_it_is_not_well(data: Path) -> None:
    with serving(data) as (_, address), make_channel(address, None) as channel:
        with closing(sqlite3.connect(data / LEDGER_FILE)) as ledger:
            ledger.execute(f"ALTER TABLE {TASKS.name} RENAME TO elsewhere")
        told = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S)
    assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_status_finds_the_tls_files_in_the_data_folder_as_serve_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TlsFiles.in_folder(tmp_path)
    for path in (files.certificate, files.private_key, files.trusted_authorities):
        path.touch()
    asked: list[TlsFiles | None] = []

    def fetch(_address: str, tls: TlsFiles | None, **_: float) -> dict[str, str]:
        asked.append(tls)
        return {"name": "north", "well": "yes"}

    monkeypatch.setattr(helper_status, "fetch_status", fetch)
    command = ["status", "--address", "127.0.0.1:1"]
    for options, environment in (
        (["--data", str(tmp_path)], {}),
        ([], {"HELPER_DATA": str(tmp_path)}),
        (["--insecure"], {"HELPER_DATA": str(tmp_path)}),
    ):
        shown = CliRunner().invoke(app, [*command, *options], env=environment)
        assert shown.exit_code == 0, shown.output
    assert asked == [files, files, None]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_status_ends_with_75_if_the_helper_is_not_well(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"name": "north", "well": "no: the disk is full"}
    monkeypatch.setattr(helper_status, "fetch_status", lambda *_, **__: rows)
    shown = CliRunner().invoke(app, ["status", "--address", "127.0.0.1:1", "--insecure", *options])
    assert (shown.exit_code, "no: the disk is full" in shown.output) == (UNAVAILABLE, True)


def test_status_without_a_folder_names_the_folder_first() -> None:
    shown = CliRunner().invoke(app, ["status", "--address", "127.0.0.1:1"], env={"COLUMNS": "300"})
    assert (shown.exit_code, "not configured: give --data" in shown.output) == (2, True)


def test_a_helper_is_not_its_own_peer(data: Path) -> None:
    own = HelperKeys.read(data).identity.fingerprint
    refused = helper("serve", "--data", data, "--listen", "127.0.0.1:0", "--insecure", "--peer", own.upper())
    assert (refused.returncode, "this helper's own fingerprint" in refused.stderr) == (REFUSED, True)
    assert refused.stderr.startswith("InvalidSetting: ")


@pytest.mark.parametrize("whose", ["this helper's", "a trusted"])
def test_a_certificate_is_not_taken_for_the_peers_fingerprint(data: Path, tmp_path: Path, whose: str) -> None:
    (tmp_path / "tls").mkdir()
    files = write_certificate(tmp_path / "tls", name="localhost", now=datetime.now(UTC))
    trusted = holder("ads.example")
    files.trusted_authorities.write_bytes(trusted.pem)
    own = sha256_of(x509.load_pem_x509_certificate(files.certificate.read_bytes()))
    shown = own if whose == "this helper's" else trusted.fingerprint
    named = ("--tls-cert", files.certificate, "--tls-key", files.private_key)
    trusting = ("--tls-ca", files.trusted_authorities, "--peer", shown)
    refused = helper("serve", "--data", data, "--listen", "127.0.0.1:0", *named, *trusting)
    assert refused.returncode == REFUSED
    assert f"--peer {shown} is the SHA-256 of {whose} TLS certificate: give the" in refused.stderr


@pytest.mark.parametrize("options", [[], ["--insecure"]])
def test_a_missing_folder_is_told_of_with_the_command_that_makes_it(
    tmp_path: Path, options: list[str]
) -> None:
    refused = helper("serve", "--data", tmp_path / "none", "--listen", "127.0.0.1:0", *options)
    told = " ".join(re.sub(r"[│\s]+", " ", refused.stderr).split())
    assert "does not exist" in told
    assert "run `lark-helper keygen`" in told


def test_a_helper_serves_shows_its_status_and_stops_on_sigterm(data: Path) -> None:
    with serving(data) as (process, address):
        shown = helper("status", "--address", address, "--insecure", "--json")
        assert shown.returncode == 0, shown.stderr
        status = json.loads(shown.stdout)
        keys = HelperKeys.read(data)
        assert (status["name"], status["verify_key"]) == ("north", keys.identity.verify_key.hex())
        assert status["fingerprint"] == keys.identity.fingerprint
        assert (status["tasks"], status["rounds_answered"]) == (0, 0)
        table = helper("status", "--address", address, "--insecure")
        assert keys.identity.verify_key.hex() in table.stdout
        second = helper("serve", "--data", data, "--listen", "127.0.0.1:0", "--insecure")
        assert (second.returncode, "another helper process" in second.stderr) == (REFUSED, True)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=HANGS_S)
        assert process.returncode == 0
    assert f"serving on {address}" in log
    assert f"fingerprint {status['fingerprint']}, software_digest {status['software_digest']}" in log
    assert "draining" in log


def test_status_gives_advice_on_certificates_where_one_may_be_the_reason(tmp_path: Path) -> None:
    """And not where no server listens."""
    files = write_certificate(tmp_path, name="localhost", now=datetime.now(UTC))
    files.trusted_authorities.write_bytes(files.certificate.read_bytes())
    other = tmp_path / "other"
    other.mkdir()
    others = write_certificate(other, name="localhost", now=datetime.now(UTC))
    others.trusted_authorities.write_bytes(others.certificate.read_bytes())
    server, port = make_server("127.0.0.1:0", others, threads=1)
    server.start()
    try:
        with pytest.raises(HelperUnavailable, match=f"trusts {files.trusted_authorities} "):
            helper_status.fetch_status(f"localhost:{port}", files, deadline_s=HANGS_S)
    finally:
        server.stop(0).wait()
    with pytest.raises(HelperUnavailable, match=r"no server is listening (there$|at .*: check that)"):
        helper_status.fetch_status(f"localhost:{port}", files, deadline_s=HANGS_S)


def test_status_of_a_helper_that_is_down_can_be_tried_again(tmp_path: Path) -> None:
    down = helper("status", "--address", "127.0.0.1:1", "--insecure", "--deadline", "2")
    assert (down.returncode, HelperUnavailable.__name__ in down.stderr) == (UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--listen", "127.0.0.1:0", "--insecure", "--peer", "north"], "'north' is not a fingerprint"),
        (["--listen", "0.0.0.0:0", "--insecure"], "not on loopback"),
        (["--listen", "0.0.0.0:0", "--insecure", "--allow-no-noise"], "--allow-no-noise"),
        (["--listen", "192.0.2.1:1", "--insecure"], "not on loopback"),
        (["--listen", "127.0.0.1:0", "--insecure", "--segments", "ftp://host/folder"], "s3://"),
    ],
)
def test_unsafe_ways_to_serve_are_refused(data: Path, options: list[str], why: str) -> None:
    refused = helper("serve", "--data", data, *options)
    assert refused.returncode == REFUSED
    assert why in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "database", ["garbage", "mysql://name:secret@host/ledger", "sqlite:////nowhere/ledger.sqlite3"]
)
def test_a_database_that_cannot_be_had_is_refused_in_one_line(data: Path, database: str) -> None:
    refused = helper("serve", "--data", data, "--listen", "127.0.0.1:0", "--insecure", "--database", database)
    assert refused.returncode == REFUSED
    assert "InvalidSetting" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "secret" not in refused.stderr


@pytest.mark.parametrize("options", [[], ["--tls-cert", "x"], ["--insecure", "--tls-cert", "x"]])
def test_tls_is_all_or_by_name_nothing(data: Path, options: list[str]) -> None:
    shown = CliRunner().invoke(app, ["serve", "--data", str(data), "--listen", "127.0.0.1:0", *options])
    assert shown.exit_code == 2


def test_the_files_of_keygen_are_used_if_no_others_are_named(tmp_path: Path) -> None:
    made = write_certificate(tmp_path, name="helper", now=datetime.now(UTC))

    def chosen(
        *, insecure: bool = False, certificate: Path | None = None, folder: Path | None = tmp_path
    ) -> TlsFiles | None:
        return tls_files(
            insecure=insecure, certificate=certificate, private_key=None, authorities=None, folder=folder
        )

    assert chosen() == made
    assert chosen(insecure=True) is None
    with pytest.raises(typer.BadParameter):
        chosen(certificate=made.certificate)
    with pytest.raises(typer.BadParameter):
        chosen(folder=None)
    made.trusted_authorities.unlink()
    with pytest.raises(typer.BadParameter, match=r"trusted\.crt does not exist"):
        chosen()


def test_serving_without_keys_says_how_to_make_them(tmp_path: Path) -> None:
    refused = helper("serve", "--data", tmp_path, "--listen", "127.0.0.1:0", "--insecure")
    assert (refused.returncode, "lark-helper keygen" in refused.stderr) == (REFUSED, True)


def test_every_option_of_serve_has_a_help_text_and_an_environment_variable() -> None:
    serve = COMMANDS["serve"].load("serve")
    options = [one for one in serve.params if isinstance(one, TyperOption) and one.name != "help"]
    assert len(options) > 15
    assert [one.name for one in options if not (one.envvar and one.help)] == []

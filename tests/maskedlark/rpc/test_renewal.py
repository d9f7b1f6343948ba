import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from helper.cli.certificate import certificate_app
from maskedlark.errors import InvalidSetting, InvalidTask
from maskedlark.observability.certificate_expiry import CertificateExpiry
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.renewal import RENEWAL_FOLDER, activate, certificates_in, prepare
from maskedlark.rpc.tls_files import Reloaded, TlsContents, TlsFiles
from maskedlark.rpc.trust import Trust, names_in, sha256_of
from tests.forged import holder

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ORIGIN = "https://ads.example"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = write_certificate(tmp_path, name=ORIGIN, hosts=("ads.example", "127.0.0.1"), now=NOW, days=30)
    made.trusted_authorities.write_bytes(holder("north").pem)
    return made


def test_a_renewal_changes_nothing_until_it_is_activated(files: TlsFiles, tmp_path: Path) -> None:
    before = files.read()
    made = prepare(tmp_path, now=NOW + timedelta(days=20), days=400)
    assert files.read() == before
    assert names_in(certificates_in(made.certificate)[0]) == {ORIGIN, "ads.example", "127.0.0.1"}
    assert made.private_key.stat().st_mode & 0o777 == 0o600
    new = made.certificate.read_bytes()
    assert activate(tmp_path).read().certificate == new
    assert files.read().trusted_authorities == before.trusted_authorities
    assert files.read().private_key != before.private_key
    assert not (tmp_path / RENEWAL_FOLDER).exists()


def test_an_activation_that_was_cut_short_is_finished_by_the_next(files: TlsFiles, tmp_path: Path) -> None:
    made = prepare(tmp_path, now=NOW, days=400)
    made.private_key.replace(files.private_key)  # and then the machine stopped
    with pytest.raises(InvalidTask, match="does not belong to"):
        files.read()
    activate(tmp_path)
    files.read()


def test_a_renewal_is_not_made_twice_and_not_activated_before_it_is_made(
    files: TlsFiles, tmp_path: Path
) -> None:
    with pytest.raises(InvalidTask, match="prepare one"):
        activate(tmp_path)
    prepare(tmp_path, now=NOW, days=400)
    with pytest.raises(InvalidTask, match="already contains a renewal"):
        prepare(tmp_path, now=NOW, days=400)


def test_without_a_certificate_there_is_nothing_to_renew(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=f"{tmp_path} is empty: --data is the folder"):
        prepare(tmp_path, now=NOW, days=400, names=["helper.example"])
    (tmp_path / "keys.json").touch()
    with pytest.raises(InvalidTask, match=r"tls\.crt does not exist: name with --host"):
        prepare(tmp_path, now=NOW, days=400)


@pytest.mark.parametrize("lost", [("tls.key",), ("tls.crt",), ("tls.key", "tls.crt")])
def test_what_was_lost_is_renewed(files: TlsFiles, tmp_path: Path, lost: tuple[str, ...]) -> None:
    for name in lost:
        (tmp_path / name).unlink()
    kept = files.private_key.read_bytes() if files.private_key.exists() else None
    names = {ORIGIN, "ads.example"} if "tls.crt" in lost else {ORIGIN, "ads.example", "127.0.0.1"}
    hosts = [f"--host={name}" for name in names] if "tls.crt" in lost else []
    assert CliRunner().invoke(certificate_app, ["renew", *hosts, "--data", str(tmp_path)]).exit_code == 0
    assert (files.private_key.read_bytes() if files.private_key.exists() else None) == kept
    activate(tmp_path)
    renewed = certificates_in(files.certificate)[0]
    assert names_in(renewed) == names
    assert renewed.subject.rfc4514_string() == f"CN={ORIGIN}"
    assert files.private_key.stat().st_mode & 0o777 == 0o600


def test_hosts_are_refused_while_a_certificate_has_them(files: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=f"{files.certificate} says whom.* leave out --host"):
        prepare(tmp_path, now=NOW, days=400, names=("other.example",))
    assert not (tmp_path / RENEWAL_FOLDER).exists()


def test_the_metric_tells_the_own_end_and_the_first_of_the_trusted_ones(
    files: TlsFiles, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    registry.register(CertificateExpiry(files))
    first, later = holder("north", days=1), holder("south", days=9)
    files.trusted_authorities.write_bytes(later.pem + first.pem)
    name = "maskedlark_certificate_expires_timestamp_seconds"
    assert registry.get_sample_value(name, {"certificate": "own"}) == (NOW + timedelta(days=30)).timestamp()
    ends = first.certificate.not_valid_after_utc.timestamp()
    assert registry.get_sample_value(name, {"certificate": "trusted"}) == ends
    prepare(tmp_path, now=NOW, days=400)
    activate(tmp_path)
    assert registry.get_sample_value(name, {"certificate": "own"}) == (NOW + timedelta(days=400)).timestamp()
    files.certificate.write_bytes(b"not PEM")
    assert registry.get_sample_value(name, {"certificate": "own"}) is None


def test_the_commands_show_renew_and_activate(files: TlsFiles, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(certificate_app, [*words, "--data", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    assert ORIGIN in run("show")
    files.trusted_authorities.write_bytes(holder("north", days=90.5).pem + holder("gone", days=-1).pem)
    _, sha256, end, trusted, gone = run("show").splitlines()
    own = certificates_in(files.certificate)[0]
    # By no word that means the helper's identity elsewhere
    assert sha256 == f"certificate sha256  {sha256_of(own)}"
    assert end.startswith("ends                2026-12-22 00:00 UTC, ")
    assert trusted.startswith("trusts              north (sha256 ")
    assert trusted.endswith(", in 90 days")
    assert gone.endswith(", expired")
    assert "give" in run("renew", "--days", "100")
    new = certificates_in(tmp_path / RENEWAL_FOLDER / "tls.crt")[0]
    assert str(new.not_valid_after_utc.date()) in run("activate")
    assert certificates_in(files.certificate)[0] == new


def test_trust_that_a_server_would_not_use_is_shown_as_such(files: TlsFiles, tmp_path: Path) -> None:
    authority, north = holder(is_authority=True), holder("north")
    files.trusted_authorities.write_bytes(north.pem + authority.pem)
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(certificate_app, ["show", *options, "--data", str(tmp_path)])
        assert isinstance(shown.exception, InvalidSetting)
        with pytest.raises(InvalidSetting) as refused:
            Trust.read(files.read())  # as a server does
        assert str(shown.exception) == f"no server uses {files.trusted_authorities} as it is: {refused.value}"
        if options:
            assert json.loads(shown.output)["fault"] == str(refused.value)
        else:
            assert [line[:20].strip() for line in shown.output.splitlines()[3:]] == ["not used", "not used"]
    files.authority_names.write_text(f"{authority.fingerprint} ads.example\n")
    shown = CliRunner().invoke(certificate_app, ["show", "--data", str(tmp_path)])
    assert shown.exit_code == 0
    assert [line[:20].strip() for line in shown.output.splitlines()[3:]] == ["trusts", "trusts"]


def test_the_certificates_are_shown_to_programs(files: TlsFiles, tmp_path: Path) -> None:
    north = holder("north", days=90)
    files.trusted_authorities.write_bytes(north.pem)
    shown = CliRunner().invoke(certificate_app, ["show", "--json", "--data", str(tmp_path)])
    assert shown.exit_code == 0
    assert json.loads(shown.output) == {
        "names": sorted((ORIGIN, "ads.example", "127.0.0.1")),
        "sha256": sha256_of(certificates_in(files.certificate)[0]),
        "ends_at": (NOW + timedelta(days=30)).timestamp(),
        "trusted": [
            {
                "names": ["north"],
                "sha256": north.fingerprint,
                "ends_at": north.certificate.not_valid_after_utc.timestamp(),
            }
        ],
        "fault": "",
    }


def test_a_file_of_trust_that_is_no_certificate_is_named(files: TlsFiles, tmp_path: Path) -> None:
    files.trusted_authorities.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    shown = CliRunner().invoke(certificate_app, ["show", "--data", str(tmp_path)])
    assert isinstance(shown.exception, InvalidTask)
    assert str(files.trusted_authorities) in str(shown.exception)


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TlsFiles.read
    prepare(tmp_path, now=NOW, days=400)

    def read_and_replace(self: TlsFiles) -> TlsContents:
        contents = read(self)
        monkeypatch.undo()
        activate(tmp_path)
        return contents

    monkeypatch.setattr(TlsFiles, "read", read_and_replace)
    kept = Reloaded(files, lambda contents: contents.certificate)
    assert kept.current() == files.certificate.read_bytes()

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from maskedlark.errors import InvalidTask
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import RenewedChannel
from maskedlark.rpc.trust import Trust, names_in
from tests.forged import holder

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def made(folder: Path, name: str, *hosts: str) -> x509.Certificate:
    folder.mkdir(exist_ok=True)
    files = write_certificate(folder, name=name, hosts=hosts, now=NOW)
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def common_name(certificate: x509.Certificate) -> str:
    [one] = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(one.value)


def test_a_long_name_is_never_cut_to_a_name_of_somebody_else(tmp_path: Path) -> None:
    victim = "v" * 56 + ".example"
    certificate = made(tmp_path, f"{victim}.evil.example")
    assert len(victim) == 64
    assert common_name(certificate) != victim
    assert names_in(certificate) == {f"{victim}.evil.example"}


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("https://ads.example", (), {"https://ads.example"}),
        (
            "https://ads.example",
            ("ads.example", "127.0.0.1"),
            {"https://ads.example", "ads.example", "127.0.0.1"},
        ),
        ("ads", ("127.0.0.1",), {"ads", "127.0.0.1"}),
        ("localhost", ("localhost", "::1"), {"localhost", "::1"}),
    ],
)
def test_a_certificate_holds_its_name_and_hosts_as_alternative_names(
    tmp_path: Path, name: str, hosts: tuple[str, ...], expected: set[str]
) -> None:
    certificate = made(tmp_path, name, *hosts)
    assert names_in(certificate) == expected
    assert common_name(certificate) == name


@pytest.mark.parametrize(
    "line",
    [
        "https://ads.example",
        "ab:cd https://ads.example",
        "g" * 64 + " https://ads.example",
        "a" * 64,
        "\xff\xfe",
    ],
)
def test_a_line_of_trusted_names_that_says_nothing_is_refused(tmp_path: Path, line: str) -> None:
    files = holder("north").files(tmp_path, trusted=holder("south").pem)
    files.authority_names.write_text(line)
    with pytest.raises(InvalidTask, match=r"trusted\.names"):
        Trust.read(files.read())


def test_an_authority_for_one_host_is_not_believed_at_another(tmp_path: Path) -> None:
    authority = holder(common_name="authority", is_authority=True)
    files = holder("https://ads.example").files(tmp_path, trusted=authority.pem)
    files.authority_names.write_text(f"{authority.fingerprint} helper-a.example")
    RenewedChannel("helper-a.example:1", files).close()
    with pytest.raises(InvalidTask, match=r"trusted\.crt is for helper-b\.example"):
        RenewedChannel("helper-b.example:1", files)


def test_the_ad_server_refuses_a_helper_certificate_that_can_sign_others(tmp_path: Path) -> None:
    files = holder("https://ads.example").files(
        tmp_path, trusted=holder("helper-a.example", is_authority=True).pem
    )
    with pytest.raises(InvalidTask, match="can sign others"):
        RenewedChannel("helper-a.example:1", files)


def test_the_names_of_an_authority_are_read_again_when_they_change(tmp_path: Path) -> None:
    files = holder("north").files(tmp_path, trusted=holder("south").pem)
    before = files.stamp()
    files.authority_names.write_text("# none yet\n")
    assert files.stamp() != before
    assert TlsFiles.in_folder(tmp_path).read().authority_names == b"# none yet\n"

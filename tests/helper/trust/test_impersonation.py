"""A tenant that a helper trusts tries to come in under another tenant's name, over real TLS."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helper.cli.status import fetch_status
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.rpc.faults import calling
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.forged import Holder, holder
from tests.helper.parties import Scene, make_task
from tests.helper.serving.test_helper_service import serve
from tests.patience import HANGS_S

VICTIM = "https://ads.example"
EVIL = "https://evil.example"
HELPER = holder("localhost")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "scene")


@contextmanager
def serving(scene: Scene, tls: TlsFiles) -> Iterator[int]:
    server, port = serve(scene, 0, tls)
    try:
        yield port
    finally:
        server.stop(None).wait()


def register(
    scene: Scene, port: int, visitor: Holder, folder: Path, *, chain: bytes = b"", origin: str = VICTIM
) -> bytes:
    """Register a task of an origin, as somebody who trusts the helper's certificate."""
    task = make_task(scene.parties, origin=origin)
    tls = visitor.files(folder, trusted=HELPER.pem, chain=chain)
    with make_channel(f"localhost:{port}", tls) as channel, calling("helper"):
        stub = helper_pb2_grpc.HelperStub(channel)
        return bytes(
            stub.RegisterTask(pb.RegisterTaskRequest(task=canonical.encode(task)), timeout=HANGS_S).signature
        )


@pytest.mark.parametrize("is_authority", [True, None], ids=["CA:TRUE", "no BasicConstraints"])
def test_a_trusted_tenant_cannot_mint_a_certificate_for_the_victim(
    scene: Scene, tmp_path: Path, is_authority: bool | None
) -> None:
    evil = holder(EVIL, common_name="evil", is_authority=is_authority)
    minted = holder(VICTIM, issuer=evil)
    with (
        pytest.raises((InvalidTask, HelperUnavailable, JobRefused)),
        serving(scene, HELPER.files(tmp_path / "helper", trusted=evil.pem)) as port,
    ):
        register(scene, port, minted, tmp_path / "minted", chain=evil.pem)


def test_a_certificate_that_can_sign_others_is_refused_with_the_reason_at_the_start(
    scene: Scene, tmp_path: Path
) -> None:
    evil = holder(EVIL, is_authority=True)
    with (
        pytest.raises(InvalidTask, match=r"can sign others.*trusted\.names") as refused,
        serving(scene, HELPER.files(tmp_path, trusted=holder(VICTIM).pem + evil.pem)),
    ):
        pass
    assert evil.fingerprint in str(refused.value)


def test_a_certificate_that_can_sign_others_is_not_taken_while_the_helper_serves(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim, evil = holder(VICTIM), holder(EVIL, common_name="evil", is_authority=True)
    files = HELPER.files(tmp_path / "helper", trusted=victim.pem)
    with serving(scene, files) as port:
        files.trusted_authorities.write_bytes(victim.pem + evil.pem)
        with pytest.raises((HelperUnavailable, JobRefused)):
            register(scene, port, holder(VICTIM, issuer=evil), tmp_path / "minted", chain=evil.pem)
        assert register(scene, port, victim, tmp_path / "victim")
    assert "can sign others" in caplog.text


def test_an_authority_certifies_the_names_that_the_operator_wrote_down_and_no_others(
    scene: Scene, tmp_path: Path
) -> None:
    authority = holder(common_name="authority", is_authority=True)
    files = HELPER.files(tmp_path / "helper", trusted=authority.pem)
    files.authority_names.write_text(
        f"# the tenants of A\n{authority.fingerprint.upper()}  {EVIL} https://good.example\n"
    )
    with serving(scene, files) as port:
        good = holder("https://good.example", "good.example", issuer=authority)
        assert register(scene, port, good, tmp_path / "good", origin="https://good.example")
        for number, names in enumerate([(VICTIM,), (VICTIM, EVIL), ("ads.example",), ()]):
            with pytest.raises((HelperUnavailable, JobRefused)):
                register(scene, port, holder(*names, issuer=authority), tmp_path / f"visitor {number}")


def test_an_authority_below_a_named_one_certifies_no_more_than_that_one_may(
    scene: Scene, tmp_path: Path
) -> None:
    authority = holder(common_name="authority", is_authority=True)
    below = holder(common_name="below", is_authority=True, issuer=authority)
    files = HELPER.files(tmp_path / "helper", trusted=authority.pem)
    files.authority_names.write_text(f"{authority.fingerprint} {EVIL}")
    with serving(scene, files) as port:
        assert register(
            scene, port, holder(EVIL, issuer=below), tmp_path / "evil", chain=below.pem, origin=EVIL
        )
        with pytest.raises(HelperUnavailable, match="no longer trusted"):
            register(scene, port, holder(VICTIM, issuer=below), tmp_path / "minted", chain=below.pem)


def test_a_pinned_certificate_need_not_be_self_signed(scene: Scene, tmp_path: Path) -> None:
    leaf = holder(VICTIM, issuer=holder(common_name="public authority", is_authority=True))
    with serving(scene, HELPER.files(tmp_path / "helper", trusted=leaf.pem)) as port:
        assert register(scene, port, leaf, tmp_path / "leaf")


@pytest.mark.parametrize("names", [(EVIL,), ()], ids=["beside another name", "alone"])
def test_a_common_name_is_no_name(scene: Scene, tmp_path: Path, names: tuple[str, ...]) -> None:
    evil = holder(*names, common_name="ads.example")
    with (
        serving(scene, HELPER.files(tmp_path / "helper", trusted=evil.pem)) as port,
        pytest.raises(JobRefused) as refused,
    ):
        register(scene, port, evil, tmp_path / "evil")
    assert refused.value.reason is JobReason.UNAUTHORIZED


def test_a_status_is_not_believed_from_a_host_that_its_authority_may_not_certify(
    scene: Scene, tmp_path: Path
) -> None:
    authority = holder(common_name="authority", is_authority=True)
    files = HELPER.files(tmp_path / "asks", trusted=authority.pem + holder(VICTIM).pem)
    imposter = holder("localhost", issuer=authority).files(tmp_path / "imposter", trusted=HELPER.pem)
    with serving(scene, imposter) as port:
        address = f"localhost:{port}"
        files.authority_names.write_text(f"{authority.fingerprint} localhost")
        assert fetch_status(address, files, deadline_s=HANGS_S)["name"]
        files.authority_names.write_text(f"{authority.fingerprint} {EVIL}")
        with pytest.raises(HelperUnavailable, match="must have the helper's certificate"):
            fetch_status(address, files, deadline_s=HANGS_S)
